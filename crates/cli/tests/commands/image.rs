//! `onebit image` on tiny packs whose pictures the reference implementation made.

use crate::serve::Server;
use crate::support::{Output, arg, golden, onebit};
use onebit::picture::png;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Cursor};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A tiny image model.
fn pack(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images").join(name);
    assert!(path.is_dir(), "{}", path.display());
    path
}

const BINARY: &str = "flux2_1bit";
const TERNARY: &str = "flux2_2bit_ternary";

/// A folder for pictures, and the program run in it.
struct Desk {
    dir: TempDir,
    model: PathBuf,
}

impl Desk {
    fn new() -> Desk {
        Desk { dir: tempfile::tempdir().expect("a folder"), model: pack(BINARY) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `onebit image ARGS`, as it is.
    fn image(&self, args: &[&str]) -> Output {
        onebit(&[&["image"], args].concat()).dir(&self.dir).run()
    }

    /// A small picture in two steps.
    fn small(&self, args: &[&str]) -> Output {
        let usual = [arg(&self.model), "--prompt", "A bonsai tree", "--size", "64x64", "--steps", "2"];
        self.image(&[&usual, args].concat())
    }

    fn pixels(&self, name: &str) -> (Vec<u8>, usize, usize) {
        let file = std::fs::read(self.file(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        png::decode(Cursor::new(file)).expect("a picture")
    }

    fn texts(&self, name: &str) -> Vec<(String, String)> {
        png::texts(Cursor::new(std::fs::read(self.file(name)).expect("the file"))).expect("a picture")
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dir).expect("the folder");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn largest_difference(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut out, mut held, mut bits) = (Vec::new(), 0u32, 0);
    for byte in text.bytes().filter(|b| *b != b'=') {
        held = held << 6 | DIGITS.iter().position(|digit| *digit == byte).expect("a digit") as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
        }
    }
    out
}

/// The seeds are those that the generator of the golden cases gave to torch.
#[test]
fn a_seed_gives_the_picture_of_the_reference_pipeline() {
    for (case, seed) in [(BINARY, "17"), (TERNARY, "18")] {
        let desk = Desk::new();
        let model = pack(case);
        let args = ["--prompt", "A bonsai tree", "--size", "128x128", "--seed", seed, "--activations", "f32"];
        let output = desk.image(&[&[arg(&model)], &args[..], &["--latents-out", "l.safetensors"]].concat()).ok();
        assert!(output.stdout.is_empty(), "{output:#?}");
        let (got, width, height) = desk.pixels("out.png");
        let wanted = std::fs::read(model.join("expected_a128.png")).expect("the golden picture");
        let (wanted, ..) = png::decode(Cursor::new(wanted)).expect("a picture");
        assert_eq!((width, height), (128, 128));
        // A level is 1/255 of the range of 2, and the image may differ by 1e-3: a rounding may fall to the other side.
        assert!(largest_difference(&got, &wanted) <= 1, "{case}");
        let ours = std::fs::read(desk.file("l.safetensors")).expect("latents");
        let golden = std::fs::read(model.join("expected.safetensors")).expect("golden");
        let (ours, golden) =
            (SafeTensors::deserialize(&ours).expect("ours"), SafeTensors::deserialize(&golden).expect("golden"));
        for step in 0..=4 {
            let got = ours.tensor(&format!("latents.{step}")).expect("a step");
            let wanted = golden.tensor(&format!("a128.latents.{step}")).expect("a step");
            assert_eq!(got.shape(), wanted.shape());
            let pairs = floats(got.data()).into_iter().zip(floats(wanted.data()));
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // testdata/README.md: 3e-4 for latents in f32; the noise itself as in its own test.
            assert!(worst <= if step == 0 { 1e-6 } else { 3e-4 }, "{case} step {step}: {worst}");
        }
    }
}

#[test]
fn noise_from_a_file_in_both_shapes() {
    let desk = Desk::new();
    let golden = std::fs::read(desk.model.join("expected.safetensors")).expect("golden");
    let golden = SafeTensors::deserialize(&golden).expect("golden");
    let noise = golden.tensor("b64x96.latents.0").expect("noise");
    let packed = floats(noise.data());
    let planes: Vec<f32> = (0..packed.len()).map(|i| packed[i % 24 * 128 + i / 24]).collect();
    let write = |name: &str, shape: &[usize], values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).expect("a tensor");
        std::fs::write(desk.file(name), safetensors::serialize([("noise", view)], None).expect("a file"))
            .expect("written");
    };
    write("packed.safetensors", &[24, 128], &packed);
    write("planes.safetensors", &[1, 128, 6, 4], &planes);
    let prompt = "the small forest, isn't it?";
    let usual = [arg(&desk.model), "--prompt", prompt, "--width", "64", "--height", "96", "--activations", "f32"];
    let make = |more: &[&str]| desk.image(&[&usual[..], &["--max-sequence-length", "64"], more].concat());
    make(&["--noise", "packed.safetensors", "-o", "a.png"]).ok();
    make(&["--noise", "planes.safetensors", "-o", "b.png"]).ok();
    let (wanted, ..) = png::decode(Cursor::new(std::fs::read(desk.model.join("expected_b64x96.png")).expect("golden")))
        .expect("a picture");
    assert!(largest_difference(&desk.pixels("a.png").0, &wanted) <= 1);
    assert_eq!(desk.pixels("a.png"), desk.pixels("b.png"));
    // A picture from a file needs the file again.
    desk.image(&[arg(&desk.model), "--from", "a.png", "-o", "c.png"]).fails(2, &["noise file", "--noise"]);
    let again = ["--from", "a.png", "--noise", "planes.safetensors", "--activations", "f32", "-o", "c.png"];
    desk.image(&[&[arg(&desk.model)], &again[..]].concat()).ok();
    assert_eq!(desk.pixels("a.png"), desk.pixels("c.png"));
    make(&["--noise", "packed.safetensors", "--seed", "1"]).code_is(2);
    // What is written on the way can be read again.
    make(&["--noise", "packed.safetensors", "--latents-out", "steps.safetensors", "-o", "d.png"]).ok();
    make(&["--noise", "steps.safetensors", "-o", "e.png"]).ok();
    assert_eq!(desk.pixels("d.png"), desk.pixels("e.png"));
    let wrong = desk.small(&["--noise", "packed.safetensors"]);
    wrong.fails(1, &["packed.safetensors", "[24, 128]", "[16, 128]", "[1, 128, 4, 4]"]);
}

#[test]
fn a_picture_tells_how_it_was_made_and_is_made_again() {
    let desk = Desk::new();
    desk.small(&["--seed", "5", "--guidance", "1.5", "--shift", "3.0", "--noise-rng", "mlx", "-o", "a.png"]).ok();
    let texts = desk.texts("a.png");
    let text = |name: &str| texts.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    for (name, value) in [
        ("prompt", "A bonsai tree"),
        ("seed", "5"),
        ("size", "64x64"),
        ("steps", "2"),
        ("guidance", "1.5"),
        ("shift", "3"),
        ("noise_rng", "mlx"),
        ("model", BINARY),
        ("max_sequence_length", "512"),
    ] {
        assert_eq!(text(name), Some(value), "{name}: {texts:?}");
    }
    assert!(text("model_hash").is_some_and(|hash| hash.len() == 16) && text("Software").is_some());
    assert!(texts.iter().all(|(_, value)| !value.contains('/')), "no path of this machine: {texts:?}");

    let again = desk.image(&[arg(&desk.model), "--from", "a.png", "-o", "b.png"]).ok();
    assert!(!again.stderr.contains("note:"), "{again:#?}");
    assert_eq!(desk.pixels("a.png"), desk.pixels("b.png"));
    assert_eq!(desk.texts("a.png"), desk.texts("b.png"));
    // One thing changed.
    desk.image(&[arg(&desk.model), "--from", "a.png", "--seed", "6", "-o", "c.png"]).ok();
    assert_ne!(desk.pixels("a.png").0, desk.pixels("c.png").0);
    // Another model: said, and made.
    let other = desk.image(&[arg(&pack(TERNARY)), "--from", "a.png", "-o", "d.png"]).ok();
    assert!(other.stderr.contains("note: a.png: it was made by another model"), "{other:#?}");
    assert_ne!(desk.pixels("a.png").0, desk.pixels("d.png").0);
    // The file does not say where the model is.
    desk.image(&["--from", "a.png", "-o", "e.png"]).fails(2, &["flux2_1bit", "name the model"]);
    // A bare file tells nothing.
    desk.small(&["--seed", "5", "--no-metadata", "-o", "bare.png"]).ok();
    assert_eq!(desk.texts("bare.png"), []);
    desk.image(&[arg(&desk.model), "--from", "bare.png", "-o", "f.png"]).fails(1, &["bare.png", "--no-metadata"]);
    desk.image(&[arg(&desk.model), "--from", "absent.png", "-o", "f.png"]).fails(1, &["absent.png"]);
}

#[test]
fn every_setting_changes_the_picture() {
    let desk = Desk::new();
    desk.small(&["--seed", "3", "-o", "plain.png"]).ok();
    let plain = desk.pixels("plain.png").0;
    for (index, more) in [
        &["--seed", "4"][..],
        &["--noise-rng", "mlx"],
        &["--shift", "0.5"],
        &["--guidance", "3"],
        &["--max-sequence-length", "64"],
    ]
    .iter()
    .enumerate()
    {
        let name = format!("{index}.png");
        let seed: &[&str] = if more[0] == "--seed" { &[] } else { &["--seed", "3"] };
        desk.small(&[seed, more, &["-o", &name]].concat()).ok();
        assert_ne!(desk.pixels(&name).0, plain, "{more:?}");
    }
    // Fresh seeds differ, and are told.
    let said = |name: &str| desk.small(&["-o", name]).ok().stderr;
    let (one, two) = (said("one.png"), said("two.png"));
    assert!(one.contains("seed ") && two.contains("seed "));
    assert_ne!(desk.pixels("one.png").0, desk.pixels("two.png").0);
    // How it is run changes nothing.
    desk.small(&["--seed", "3", "--low-memory", "--threads", "1", "--no-mmap", "-o", "low.png"]).ok();
    assert_eq!(desk.pixels("low.png").0, plain);
}

#[test]
fn several_pictures_and_files_that_exist() {
    let desk = Desk::new();
    let json = desk.small(&["--seed", "7", "-n", "3", "-o", "many.png", "--json"]).ok().json();
    assert_eq!(desk.names(), ["many-1.png", "many-2.png", "many-3.png"]);
    let pictures = json["pictures"].as_array().expect("pictures");
    assert_eq!(pictures.iter().map(|p| p["seed"].as_u64()).collect::<Vec<_>>(), [Some(7), Some(8), Some(9)]);
    assert_eq!(pictures[2]["file"], "many-3.png");
    desk.small(&["--seed", "9", "-o", "alone.png"]).ok();
    assert_eq!(desk.pixels("many-3.png"), desk.pixels("alone.png"), "a picture does not depend on those beside it");

    let before = std::fs::read(desk.file("alone.png")).expect("there");
    let started = Instant::now();
    desk.small(&["--seed", "1", "-o", "alone.png"]).fails(1, &["alone.png exists", "--force"]);
    desk.small(&["--seed", "1", "-n", "3", "-o", "many.png"]).fails(1, &["many-1.png exists"]);
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(std::fs::read(desk.file("alone.png")).expect("there"), before);
    desk.small(&["--seed", "1", "-o", "alone.png", "--force"]).ok();
    assert_ne!(std::fs::read(desk.file("alone.png")).expect("there"), before);
    desk.small(&["-o", "no/such/folder.png"]).fails(1, &["no/such"]);
    desk.small(&["-o", "out.jpg"]).fails(2, &["out.png", "PNG"]);
    desk.small(&["-n", "2", "--latents-out", "l.safetensors"]).fails(2, &["-n"]);
    assert!(desk.names().iter().all(|name| !name.contains("unfinished")), "{:?}", desk.names());
}

#[test]
fn json_has_what_a_script_needs() {
    let desk = Desk::new();
    let output = desk.small(&["--seed", "7", "--json", "--low-memory"]).ok();
    assert_eq!(output.stdout.lines().count(), 1);
    let json = output.json();
    assert_eq!(
        (json["width"].as_u64(), json["height"].as_u64(), json["steps"].as_u64()),
        (Some(64), Some(64), Some(2))
    );
    assert_eq!(json["prompt_tokens"], 32);
    assert_eq!(json["one_by_one"], true);
    assert_eq!(json["model_hash"].as_str().map(str::len), Some(16));
    let number = |value: &Value| value.as_f64().is_some_and(|n| n > 0.0);
    for key in ["predicted_peak_bytes", "predicted_operations", "peak_rss"] {
        assert!(number(&json[key]), "{key}: {json}");
    }
    let picture = &json["pictures"][0];
    assert!(number(&picture["seconds"]) && number(&picture["predicted_seconds"]), "{json}");
    assert_eq!(picture["parts"].as_array().map(Vec::len), Some(3));
    // What is said before the first step, and after.
    let told = &output.stderr;
    let at = |text: &str| told.find(text).unwrap_or_else(|| panic!("no {text:?} in {told}"));
    assert!(at("peak memory about") < at("will take about") && at("will take about") < at("step 1 of 2"), "{told}");
    assert!(at("step 2 of 2") < at("predicted"), "{told}");
    let quiet = desk.small(&["--seed", "7", "-q", "-o", "quiet.png"]).ok();
    assert_eq!((quiet.stdout, quiet.stderr), (String::new(), String::new()));
}

#[test]
fn sizes_that_cannot_be_made_are_refused_with_their_neighbours() {
    let desk = Desk::new();
    let model = arg(&desk.model).to_owned();
    let ask = |more: &[&str]| desk.image(&[&[model.as_str(), "--prompt", "A tree"], more].concat());
    ask(&["--size", "500x512"]).fails(2, &["496x512", "512x512"]);
    ask(&["--width", "512", "--height", "520"]).fails(2, &["512x512", "512x528"]);
    ask(&["--size", "8x8"]).fails(2, &["16x16"]);
    ask(&["--size", "huge"]).fails(2, &["WIDTHxHEIGHT"]);
    ask(&["--width", "512"]).fails(2, &["--height"]);
    ask(&["--size", "64x64", "--width", "64", "--height", "64"]).fails(2, &["--size"]);
    assert!(desk.names().is_empty());
}

#[test]
fn what_is_missing_or_wrong_is_said_before_the_work() {
    let desk = Desk::new();
    let model = arg(&desk.model).to_owned();
    desk.image(&[&model]).fails(2, &["--prompt"]);
    desk.image(&[&model, "--prompt", " "]).fails(2, &["empty"]);
    desk.image(&["seedling", "--prompt", "A tree"]).fails(1, &["answers with text", "image-ternary-4b"]);
    desk.image(&[arg(&golden("qwen3_1bit_untied")), "--prompt", "A tree"])
        .fails(1, &["not the folder of an image model"]);
    desk.image(&["/no/such/folder", "--prompt", "A tree"]).fails(1, &["does not exist"]);
    desk.image(&["image-ternary-4b", "--prompt", "A tree"]).fails(1, &["onebit pull"]);
    desk.small(&["--steps", "0"]).code_is(2);
    desk.small(&["-o", "one.png", "--latents-out", "./one.png"]).fails(2, &["-o and --latents-out both name"]);
    desk.small(&["--guidance", "nan"]).fails(2, &["guidance"]);
    desk.small(&["--shift", "much"]).fails(2, &["--shift"]);
    desk.small(&["--ctx", "512"]).code_is(2);
    desk.small(&["--backend", "reference", "--max-sequence-length", "8"]).fails(1, &["--max-sequence-length", "frame"]);
    assert!(desk.names().is_empty(), "{:?}", desk.names());
    // The other way round.
    let reply = onebit(&["run", &model, "hello"]).run();
    assert!(reply.code == 1 && reply.stderr.contains("onebit image"), "{reply:#?}");
}

#[test]
fn piped_text_is_the_prompt() {
    let desk = Desk::new();
    desk.small(&["--seed", "2", "-o", "word.png"]).ok();
    let args = ["image", arg(&desk.model), "--size", "64x64", "--steps", "2", "--seed", "2", "-o", "piped.png"];
    onebit(&args).dir(&desk.dir).stdin("A bonsai tree\n").run().ok();
    assert_eq!(desk.pixels("word.png"), desk.pixels("piped.png"));
}

/// `onebit image 'a red circle'` is what one types first.
#[test]
fn a_lone_sentence_is_the_prompt() {
    let desk = Desk::new();
    let usual = ["--size", "64x64", "--steps", "2", "--seed", "2", "-o"];
    let lone = |name: &'static str| [&["A bonsai tree"], &usual[..], &[name]].concat();
    desk.small(&["--seed", "2", "-o", "word.png"]).ok();
    let args = [&["image"], &lone("lone.png")[..]].concat();
    onebit(&args).dir(&desk.dir).env("ONEBIT_MODEL", arg(&desk.model)).run().ok();
    assert_eq!(desk.pixels("word.png"), desk.pixels("lone.png"));
    // Beside a prompt it must be a model.
    desk.image(&[&lone("two.png")[..], &["--prompt", "A tree"]].concat()).fails(2, &["`A bonsai tree` is no model"]);
    desk.image(&["/no/such", "--size", "64x64"]).fails(2, &["--prompt"]);
}

/// Of the tiny vocabulary, a letter is about a token.
#[test]
fn prompts_are_read_to_512_tokens_and_cut_with_a_warning() {
    let desk = Desk::new();
    let make = |prompt: &str, name: &str| {
        desk.image(&[
            arg(&desk.model),
            "--prompt",
            prompt,
            "--size",
            "32x32",
            "--steps",
            "1",
            "--seed",
            "1",
            "-o",
            name,
        ])
        .ok()
    };
    let tokens = |prompt: &str| {
        let args = [
            "image",
            arg(&desk.model),
            "--prompt",
            prompt,
            "--size",
            "32x32",
            "--steps",
            "1",
            "--json",
            "--force",
            "-q",
        ];
        onebit(&args).dir(&desk.dir).run().ok().json()["prompt_tokens"].as_u64().expect("a count")
    };
    let frame = tokens("q") - 1;
    // The last word counts well behind the 77 tokens of older text encoders.
    let long = |count: u64, last: &str| format!("{}{last}", "q ".repeat((count / 2) as usize));
    for count in [60, 78, 470] {
        let (a, b) = (long(count, "zz"), long(count, "kk"));
        assert!(tokens(&a) <= 512, "{count}");
        let quiet = make(&a, &format!("{count}a.png"));
        assert!(!quiet.stderr.contains("warning"), "{quiet:#?}");
        make(&b, &format!("{count}b.png"));
        assert_ne!(desk.pixels(&format!("{count}a.png")).0, desk.pixels(&format!("{count}b.png")).0, "{count}");
    }
    // Beyond 512 it is said how many there are and what is left out, and the rest is still a picture.
    let args = |prompt: &str, name: &str| make(prompt, name);
    let said = args(&long(2000, "the end"), "cut.png").stderr;
    let whole = tokens(&long(2000, "the end"));
    assert!(
        said.contains("warning") && said.contains(&format!("{whole} tokens")) && said.contains("512 are read"),
        "{said}"
    );
    assert!(frame > 10 && whole > 1500);
    for (index, prompt) in ["🌳🦊", "盆栽の木", "naïve\nlines"].iter().enumerate() {
        make(prompt, &format!("other{index}.png"));
    }
}

#[test]
fn broken_weights_give_an_error_and_no_file() {
    let desk = Desk::new();
    let copy = tempfile::tempdir().expect("a folder");
    copy_tree(&desk.model, copy.path());
    let path = copy.path().join("vae/diffusion_pytorch_model.safetensors");
    let mut file = std::fs::read(&path).expect("the weights");
    let start = {
        let tensors = SafeTensors::deserialize(&file).expect("valid");
        let tensor = tensors.tensor("decoder.conv_in.weight").expect("the tensor");
        assert_eq!(tensor.dtype(), Dtype::BF16);
        tensor.data().as_ptr() as usize - file.as_ptr() as usize
    };
    file[start..start + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&path, file).expect("written");
    let args = [arg(copy.path()), "--prompt", "A tree", "--size", "64x64", "--steps", "1"];
    desk.image(&args).fails(1, &["NaN"]);
    assert!(desk.names().is_empty(), "{:?}", desk.names());
}

/// A file that is no transformer, one without the other parts beside it, and one of another kind of FLUX are named.
#[test]
fn files_that_are_no_model_are_named() {
    let desk = Desk::new();
    let copy = tempfile::tempdir().expect("a folder");
    copy_tree(&desk.model, copy.path());
    let vae = copy.path().join("vae/diffusion_pytorch_model.safetensors");
    desk.image(&[arg(&vae), "--prompt", "A tree"]).fails(1, &["not the transformer", "vae and tokenizer"]);
    let bytes = vec![0; 384 * 128 * 4];
    let write = |path: &Path, names: &[&str]| {
        let view = || TensorView::new(Dtype::F32, vec![384, 128], &bytes).expect("a tensor");
        let file = safetensors::serialize(names.iter().map(|name| (*name, view())), None).expect("a file");
        std::fs::write(path, file).expect("written");
    };
    let flux = ["double_blocks.0.img_attn.qkv.weight", "double_stream_modulation_img.lin.weight"];
    let file = copy.path().join("flux.safetensors");
    write(&file, &flux);
    desk.image(&[arg(&file), "--prompt", "A tree"]).fails(1, &["transformer: tensor `x_embedder.weight` is missing"]);
    // The first FLUX has modulations in its blocks.
    write(&file, &flux[..1]);
    desk.image(&[arg(&file), "--prompt", "A tree"]).fails(1, &["not the transformer"]);
    let alone = desk.file("flux.safetensors");
    write(&alone, &flux);
    desk.image(&[arg(&alone), "--prompt", "A tree"]).fails(1, &["text encoder"]);
    std::fs::write(&alone, "no safetensors").expect("written");
    desk.image(&[arg(&alone), "--prompt", "A tree"]).fails(1, &["flux.safetensors"]);
    assert_eq!(desk.names(), ["flux.safetensors"]);
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else if !entry.file_name().to_string_lossy().starts_with("expected") {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}

#[test]
fn the_decoder_works_in_tiles_where_memory_is_small() {
    let desk = Desk::new();
    let make = |more: &[&str]| {
        let args =
            [arg(&desk.model), "--prompt", "A tree", "--size", "512x512", "--steps", "1", "--seed", "1", "--json"];
        desk.image(&[&args[..], more].concat()).ok().json()
    };
    let (whole, tiles) = (make(&["-o", "whole.png"]), make(&["--decode-memory", "47", "-o", "tiles.png"]));
    assert_eq!(whole["tiles"], 1, "{whole}");
    desk.small(&["--decode-memory", "1", "-o", "small.png"]).fails(2, &["--decode-memory"]);
    assert!(tiles["tiles"].as_u64().is_some_and(|n| n > 1), "{tiles}");
    assert!(tiles["predicted_peak_bytes"].as_u64() < whole["predicted_peak_bytes"].as_u64());
    assert!(tiles["peak_rss"].as_u64() < whole["peak_rss"].as_u64(), "{tiles} {whole}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_between_steps_leaves_nothing_behind() {
    let desk = Desk::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
    command.args(["image", arg(&desk.model), "--prompt", "A tree", "--size", "64x64", "--steps", "900", "-n", "2"]);
    command.current_dir(&desk.dir).env("ONEBIT_BACKEND", "cpu").stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    assert!(lines.by_ref().any(|line| line.starts_with("step 1 of 900")), "it works");
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(interrupted.success());
    let rest: Vec<String> = lines.collect();
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130), "{rest:?}");
    assert!(rest.iter().all(|line| !line.starts_with("step 900")), "at the next step and not at the end");
    assert!(desk.names().is_empty(), "{:?}", desk.names());
}

#[test]
fn a_sheet_has_a_cell_for_every_model_and_prompt() {
    let desk = Desk::new();
    std::fs::write(desk.file("prompts.txt"), "A bonsai tree\n\n  a small forest  \n").expect("written");
    let models = [pack(BINARY), golden("qwen3_1bit_untied")];
    let args = [
        "compare",
        arg(&models[0]),
        arg(&models[1]),
        "--prompts",
        "prompts.txt",
        "--sizes",
        "64x64,96x64",
        "--seed",
        "4",
        "--steps",
        "1",
        "--json",
    ];
    let output = desk.image(&args).ok();
    let json = output.json();
    let written = std::fs::read_to_string(desk.file("sheet.json")).expect("the numbers");
    assert_eq!(json, serde_json::from_str::<Value>(&written).expect("JSON"));
    let cells = json["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 8);
    for cell in cells {
        let is_image = cell["model"].as_str().is_some_and(|m| m.contains("flux2"));
        assert_eq!(cell["error"].is_null(), is_image, "{cell}");
        assert_eq!(cell["seconds"].is_number() && cell["peak_rss"].is_number(), is_image, "{cell}");
        assert_eq!(cell["seed"], 4);
    }
    assert_eq!(cells[0]["model_hash"].as_str().map(str::len), Some(16));
    assert!(cells[4]["error"].as_str().is_some_and(|e| e.contains("image model")), "{}", cells[4]);
    let (_, width, height) = desk.pixels("sheet.png");
    assert!(width > 4 * 240 && height > 2 * 64, "{width}x{height}");
    assert_eq!(desk.names(), ["prompts.txt", "sheet.json", "sheet.png"]);
    // Not a single picture is a failure, with the sheet that tells why.
    let none = ["compare", arg(&models[1]), "--prompts", "prompts.txt", "-o", "none.png", "-q"];
    let output = desk.image(&none);
    assert_eq!(output.code, 1);
    assert!(output.stderr.contains("not a single picture") && desk.file("none.png").exists(), "{output:#?}");
    desk.image(&args).fails(1, &["sheet.png exists"]);
    desk.image(&["compare", "--prompts", "prompts.txt"]).code_is(2);
    std::fs::write(desk.file("empty.txt"), "\n \n").expect("written");
    desk.image(&["compare", "x/y", "--prompts", "empty.txt", "-o", "e.png"]).fails(2, &["empty.txt", "no prompt"]);
}

#[test]
fn a_server_makes_the_same_pictures() {
    let desk = Desk::new();
    desk.small(&["--seed", "5", "-o", "cli.png"]).ok();
    let server = Server::start(&[arg(&desk.model), "seedling", "--backend", "cpu"]);
    assert!(server.said.contains("makes pictures"), "{}", server.said);
    let models = server.get("/v1/models");
    let kinds: Vec<(&str, &str)> = models["data"]
        .as_array()
        .expect("models")
        .iter()
        .map(|m| (m["id"].as_str().unwrap_or_default(), m["kind"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(kinds, [(BINARY, "image"), ("seedling", "text")]);
    let path = "/v1/images/generations";
    let order = json!({"prompt": "A bonsai tree", "size": "64x64", "steps": 2, "seed": 5});
    let (status, reply) = server.post(path, &order);
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["data"][0]["prompt_tokens"], 32);
    let file = base64(reply["data"][0]["b64_json"].as_str().expect("a picture"));
    std::fs::write(desk.file("http.png"), &file).expect("written");
    assert_eq!(desk.pixels("http.png"), desk.pixels("cli.png"));
    assert_eq!(desk.texts("http.png"), desk.texts("cli.png"));
    for (width, height) in [(32, 48), (64, 32), (96, 96)] {
        let order = json!({"prompt": "A tree", "size": format!("{width}x{height}"), "steps": 1, "seed": 5});
        let file = base64(server.post(path, &order).1["data"][0]["b64_json"].as_str().expect("a picture"));
        let (_, wide, high) = png::decode(Cursor::new(file)).expect("a picture");
        assert_eq!((wide, high), (width, height), "a size is never changed in silence");
    }
    // Text goes on beside it, and each has its own door.
    let (status, reply) =
        server.post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}));
    assert_eq!((status, &reply["model"]), (200, &json!("seedling")), "{reply}");
    for (path, body, words) in [
        (
            "/v1/chat/completions",
            json!({"model": BINARY, "messages": [{"role": "user", "content": "hi"}]}),
            "/v1/images/generations",
        ),
        (path, json!({"model": "seedling", "prompt": "a tree"}), "/v1/chat/completions"),
        (path, json!({"prompt": "a tree", "size": "500x512"}), "496x512 and 512x512"),
        (path, json!({"prompt": "a tree", "steps": 5000}), "1000"),
        (path, json!({"prompt": "q ".repeat(700)}), "512 are read"),
    ] {
        let (status, reply) = server.post(path, &body);
        assert_eq!(status, 400, "{reply}");
        assert!(reply["error"]["message"].as_str().is_some_and(|m| m.contains(words)), "{words}: {reply}");
    }
}

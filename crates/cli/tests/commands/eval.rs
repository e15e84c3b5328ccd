//! `eval`: figures of texts and of tasks, comparison, bad input.

use crate::support::{Copy, arg, golden, onebit};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};

/// A file in a folder of its own.
struct File {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    fn of(name: &str, text: &str) -> File {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        File { _dir: dir, path }
    }

    fn arg(&self) -> &str {
        arg(&self.path)
    }
}

const TEXT: &str =
    "The sun is warm.<|endoftext|>\nOnce upon a time there was a small tree. It liked the rain.\n<|endoftext|>\n";

fn number(json: &Json) -> f64 {
    json.as_f64().unwrap_or_else(|| panic!("{json} is no number"))
}

#[test]
fn a_text_gives_every_figure() {
    let text = File::of("t.txt", TEXT);
    let json = onebit(&["eval", "seedling", "--text", text.arg(), "--json"]).run().ok().json();
    assert_eq!(json["model"]["name"], "seedling");
    assert_eq!((&json["window"], &json["stride"], &json["reference"]), (&json!(2048), &json!(2048), &Json::Null));
    let text = &json["texts"][0];
    assert_eq!((&text["documents"], &text["windows"]), (&json!(2), &json!(2)));
    // Line breaks beside separators and the separators themselves are no text.
    assert_eq!(text["bytes"], TEXT.replace("<|endoftext|>", "").trim_end().len() - 1);
    let (tokens, loss) = (number(&text["tokens"]), number(&text["model"]["loss"]["value"]));
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    close(number(&text["model"]["perplexity"]["value"]), loss.exp());
    close(number(&text["model"]["bits_per_byte"]), loss * tokens / std::f64::consts::LN_2 / number(&text["bytes"]));
    let top1 = &text["model"]["top1"];
    close(number(&top1["value"]), number(&top1["right"]) / tokens);
    assert_eq!(number(&top1["of"]), tokens);
    // Two windows are too few for an interval.
    assert_eq!((&text["interval_units"], &text["model"]["loss"]["low"]), (&Json::Null, &Json::Null));
}

#[test]
fn intervals_hold_the_mean_and_windows_count_every_token_once() {
    let text = File::of("t.txt", TEXT);
    let run = |more: &[&str]| {
        let args = [&["eval", "seedling", "--text", text.arg(), "--json"][..], more].concat();
        onebit(&args).run().ok().json()["texts"][0].clone()
    };
    let whole = run(&[]);
    for more in [&["--window", "4"][..], &["--window", "6", "--stride", "2"]] {
        let cut = run(more);
        assert_eq!((&cut["tokens"], &cut["bytes"]), (&whole["tokens"], &whole["bytes"]), "{more:?}");
        assert_eq!(cut["interval_units"], "windows");
        for figure in ["loss", "perplexity", "top1"] {
            let figure = &cut["model"][figure];
            let [low, value, high] = ["low", "value", "high"].map(|end| number(&figure[end]));
            assert!(low < value && value < high, "{figure}");
        }
    }
    let limited = run(&["--window", "4", "--limit", "2"]);
    assert_eq!((&limited["windows"], &limited["documents"]), (&json!(2), &json!(1)));
}

#[test]
fn a_model_agrees_with_itself_and_not_quite_with_its_rounded_self() {
    let text = File::of("t.txt", &"The cat sat on the mat and saw a bird. ".repeat(12));
    let against = |more: &[&str]| {
        let args =
            ["eval", "seedling", "--text", text.arg(), "--json", "--activations", "f32", "--against", "seedling"];
        onebit(&[&args[..], more].concat()).run().ok().json()
    };
    let same = against(&[]);
    let own = &same["texts"][0];
    assert_eq!((number(&own["kl"]["value"]), number(&own["agreement"]["value"])), (0.0, 1.0));
    assert_eq!(own["model"], own["reference"]);
    let rounded = against(&["--kv-quant", "q4", "--against-kv-quant", "none"]);
    assert_eq!((&rounded["model"]["kv"], &rounded["reference"]["kv"]), (&json!("q4"), &json!("f32")));
    let own = &rounded["texts"][0];
    let (kl, largest) = (number(&own["kl"]["value"]), number(&own["largest_kl"]["value"]));
    assert!(0.0 < kl && kl < largest && largest < 0.5, "{own}");
    let table = onebit(&["eval", "seedling", "--text", text.arg(), "--against", "seedling"]).run().ok().stdout;
    assert!(table.contains("KL(MODEL2 || MODEL)") && table.contains("MODEL2  seedling"), "{table}");
}

#[test]
fn other_vocabularies_are_refused() {
    let text = File::of("t.txt", TEXT);
    let other = golden("qwen3_1bit_untied");
    onebit(&["eval", "seedling", "--text", text.arg(), "--against", arg(&other)])
        .run()
        .fails(1, &["seedling has a vocabulary of 12,288 tokens", "one of 320", "--against"]);
    // As many tokens, but one of them is another: the numbers would be about different things.
    let changed = Copy::of("qwen3_1bit_untied");
    changed.edit("tokenizer.json", |bytes| {
        let mut json: Json = serde_json::from_slice(bytes).expect("JSON");
        let vocabulary = json["model"]["vocab"].as_object_mut().expect("a vocabulary");
        let keys = ["a", "b"].map(|key| vocabulary[key].clone());
        (vocabulary["a"], vocabulary["b"]) = (keys[1].clone(), keys[0].clone());
        *bytes = serde_json::to_vec(&json).expect("written");
    });
    onebit(&["eval", arg(&other), "--text", text.arg(), "--against", changed.arg()]).run().fails(1, &["token "]);
}

#[test]
fn damaged_numbers_are_named_by_their_place() {
    let text = File::of("t.txt", TEXT);
    let case = Copy::of("qwen3_1bit_untied");
    case.edit("model.safetensors", |bytes| {
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let json: Json = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
        let offsets = &json["lm_head.scales"]["data_offsets"];
        let at = 8 + header + offsets[0].as_u64().expect("an offset") as usize;
        bytes[at..at + 2].copy_from_slice(&0x7e00u16.to_le_bytes());
    });
    let output = onebit(&["eval", case.arg(), "--text", text.arg()]).run();
    output.fails(1, &["t.txt, document 1", "the logits after position 0 hold NaN or infinity", "onebit doctor"]);
}

#[test]
fn tasks_are_judged_and_wrong_answers_shown() {
    let ask = |kind: &str, question: &str, more: Json| {
        let mut line = json!({"kind": kind, "messages": [{"role": "user", "content": question}]});
        line.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        line.to_string()
    };
    let roll = json!({"type": "function", "function": {"name": "roll_dice", "description": "Roll dice.",
        "parameters": {"type": "object", "properties": {"dice": {"type": "integer"}}, "required": ["dice"]}}});
    // Nobody answers with this number.
    let lines = [
        ask("sums", "What is 2 + 3?", json!({"expect": {"number": "987654321"}})),
        String::new(),
        ask("reading", "The hat is on the bed.\n\nWhere is the hat?", json!({"expect": {"text": "zzyzx"}})),
        ask("json", "Turn these words into a JSON list: hat, bed.", json!({"expect": {"json": ["zzyzx"]}})),
        ask(
            "tools",
            "Roll 2 dice.",
            json!({"tools": [roll], "expect": {"name": "roll_dice", "arguments": {"dice": 77}}}),
        ),
    ];
    let tasks = File::of("mixed.jsonl", &lines.join("\n"));
    let args = ["eval", "seedling", "--tasks", tasks.arg(), "--max-tokens", "40", "--show-failures", "2"];
    let json = onebit(&[&args[..], &["--json"]].concat()).run().ok().json();
    assert_eq!((&json["answers"]["temperature"], &json["answers"]["repeat_penalty"]), (&json!(0.0), &json!(1.0)));
    let task = &json["tasks"][0];
    let kinds: Vec<&str> =
        task["kinds"].as_array().expect("kinds").iter().filter_map(|kind| kind["kind"].as_str()).collect();
    assert_eq!(kinds, ["sums", "reading", "tools", "json"]);
    for kind in task["kinds"].as_array().expect("kinds") {
        let right = &kind["scores"]["right"];
        assert_eq!((&right["right"], &right["of"], number(&right["low"])), (&json!(0), &json!(1), 0.0), "{kind}");
    }
    let lines: Vec<&Json> = task["failures"].as_array().expect("failures").iter().map(|f| &f["line"]).collect();
    assert_eq!(lines, [1, 3]);
    let table = onebit(&args).run().ok().stdout;
    for part in ["answers: greedy, at most 40 tokens", "well formed", "mixed.jsonl, line 3", "wanted  zzyzx"] {
        assert!(table.contains(part), "{part} in {table}");
    }
}

#[test]
fn sampling_options_reach_the_answers() {
    let line = json!({"kind": "sums", "messages": [{"role": "user", "content": "What is 2 + 3?"}],
        "expect": {"number": 5}});
    let tasks = File::of("sums.jsonl", &line.to_string());
    let options = ["--temperature", "0.5", "--repeat-penalty", "1.2", "--seed", "7", "--max-tokens", "5", "--json"];
    let json = onebit(&[&["eval", "seedling", "--tasks", tasks.arg()][..], &options].concat()).run().ok().json();
    let answers = &json["answers"];
    assert_eq!(answers["temperature"], 0.5);
    assert_eq!((&answers["repeat_penalty"], &answers["seed"]), (&json!(1.2), &json!(7)));
    assert_eq!((&answers["max_tokens"], &answers["top_k"]), (&json!(5), &json!(0)));
}

#[test]
fn bad_input_is_said_before_anything_is_measured() {
    let (text, empty) = (File::of("t.txt", TEXT), File::of("empty.txt", "\n<|endoftext|>\n"));
    let bad = File::of("bad.jsonl", "{\"kind\": \"sums\", \"messages\": [], \"expect\": {}}\n");
    let eval = |args: &[&str]| onebit(&[&["eval", "seedling"], args].concat()).run();
    eval(&[]).fails(2, &["--text <FILE>|--tasks <FILE>"]);
    eval(&["--tasks", bad.arg(), "--against", "seedling"]).fails(2, &["--text"]);
    eval(&["--text", "nowhere.txt"]).fails(1, &["nowhere.txt does not exist"]);
    eval(&["--text", empty.arg()]).fails(1, &["empty.txt has no token to predict"]);
    eval(&["--text", text.arg(), "--separator", ""]).fails(2, &["--separator is empty"]);
    eval(&["--text", text.arg(), "--window", "3000"]).fails(2, &["3000", "the context of 2048"]);
    eval(&["--text", text.arg(), "--window", "8", "--stride", "9"]).fails(2, &["stride of 9", "windows have 8"]);
    eval(&["--text", text.arg(), "--temperature", "-1"]).fails(2, &["temperature"]);
    eval(&["--tasks", bad.arg()]).fails(1, &["bad.jsonl, line 1", "`messages` is empty"]);
    eval(&["--tasks", empty.arg()]).fails(1, &["empty.txt, line 2", "wanted one JSON object a line"]);
    let tasks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/training/heldout/sums.jsonl");
    onebit(&["eval", arg(&golden("qwen3_1bit_untied")), "--tasks", arg(&tasks)])
        .run()
        .fails(1, &["qwen3_1bit_untied has no chat template", "--tasks"]);
}

#[test]
fn task_files_of_the_repository_are_good() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/training/heldout");
    for name in ["sums", "reading", "tools", "json"] {
        let path = folder.join(name).with_extension("jsonl");
        let args = ["eval", "seedling", "--tasks", arg(&path), "--limit", "1", "--max-tokens", "1", "--json"];
        let json = onebit(&args).run().ok().json();
        assert_eq!(json["tasks"][0]["kinds"][0]["kind"], name);
        assert_eq!(json["tasks"][0]["kinds"][0]["cut_off"], 1);
    }
}

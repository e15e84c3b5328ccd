//! Arguments of `image` and `image compare`.

use super::model::ModelArg;
use super::running::{ActivationsName, BackendName, KeepIn, KvQuant, RunOptions, count, threads};
use clap::{Args, Subcommand, ValueEnum};
use onebit_engine::NoiseRng;
use onebit_models::image::{ImageSize, PATCH, schedule::Shift};
use std::path::PathBuf;

/// Whose noise a seed stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NoiseRngName {
    /// torch.randn on the CPU, as diffusers draws it; looks at 32 bits of the seed
    Torch,
    /// mlx.random.normal, as mflux draws it
    Mlx,
}

impl NoiseRngName {
    /// The generator.
    #[must_use]
    pub fn rng(self) -> NoiseRng {
        match self {
            NoiseRngName::Torch => NoiseRng::Torch,
            NoiseRngName::Mlx => NoiseRng::Mlx,
        }
    }
}

/// Arguments of `image`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
MODEL is the folder of an image pack, owner/name on the hub, or a short name such as image-ternary-4b. Without one the \
built-in model draws, which knows only simple shapes. Without --prompt a lone word or sentence that is no model is the prompt, or \
what is piped in. Sides are multiples of 16.

Examples:
  onebit image --prompt 'a red circle above a blue square'                  without a download
  onebit image image-ternary-4b --prompt 'A bonsai tree on a desk'
  onebit image ./bonsai-image --prompt 'A red fox' --size 768x512 --seed 7 -o fox.png
  onebit image image-binary-4b --prompt 'A lighthouse' -n 4 -o light.png     makes light-1.png to light-4.png
  onebit image ./bonsai-image --from fox.png -o again.png                   the same picture again
  onebit image ./bonsai-image --from fox.png --seed 8 -o other.png          the same but for the seed
  onebit image compare image-binary-4b image-ternary-4b --prompts prompts.txt -o sheet.png"
)]
pub struct ImageArgs {
    /// Another task than making pictures
    #[command(subcommand)]
    pub task: Option<ImageTask>,
    /// The model
    #[command(flatten)]
    pub model: ModelArg,
    /// What the picture shows
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Repeat a picture that onebit made: prompt, seed and the rest come from the file, except what is given here
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Where the picture goes; with -n, out.png stands for out-1.png, out-2.png, ...
    #[arg(short, long, value_name = "FILE", default_value = "out.png")]
    pub output: PathBuf,
    /// Pictures to make, with seeds that follow each other
    #[arg(short = 'n', long, value_name = "N", default_value = "1", value_parser = count)]
    pub count: usize,
    /// Write over files that exist
    #[arg(long)]
    pub force: bool,
    /// Leave out of the file how it was made
    #[arg(long)]
    pub no_metadata: bool,
    /// One JSON object on stdout at the end
    #[arg(long)]
    pub json: bool,
    /// Nothing on stderr but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// How it is made
    #[command(flatten)]
    pub paint: PaintOptions,
    /// How to run
    #[command(flatten)]
    pub run: ImageRunOptions,
}

/// What decides about a picture beside its prompt.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Picture")]
pub struct PaintOptions {
    /// Width and height in pixels, multiples of 16 [default: 512x512, or what the model was made for if smaller]
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = size, conflicts_with_all = ["width", "height"])]
    pub size: Option<ImageSize>,
    /// Width in pixels; goes with --height
    #[arg(long, value_name = "PIXELS", requires = "height", value_parser = count)]
    pub width: Option<usize>,
    /// Height in pixels; goes with --width
    #[arg(long, value_name = "PIXELS", requires = "width", value_parser = count)]
    pub height: Option<usize>,
    /// Steps from noise to picture [default: 4, which the Bonsai packs are made for]
    #[arg(long, value_name = "N", value_parser = count)]
    pub steps: Option<usize>,
    /// Weight of the prompt against an empty one [default: 1; any other value doubles the time]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub guidance: Option<f32>,
    /// Shift of the noise levels: a fixed mu such as 3.0, or auto, the value fitted to size and steps [default: auto]
    #[arg(long, value_name = "auto|MU", value_parser = shift, allow_negative_numbers = true)]
    pub shift: Option<Shift>,
    /// Seed of the noise; equal seeds give equal pictures [default: a fresh one, which is printed]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Whose noise the seed stands for [default: torch]
    #[arg(long, value_enum)]
    pub noise_rng: Option<NoiseRngName>,
    /// Take the noise from a safetensors file: tensor `noise` (or `latents.0`), [tokens, channels] or [1, channels, height/16, width/16]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "noise_rng"])]
    pub noise: Option<PathBuf>,
    /// Write the noise and what each step makes of it to a safetensors file: tensors `latents.0` to `latents.STEPS`
    #[arg(long, value_name = "FILE")]
    pub latents_out: Option<PathBuf>,
    /// Tokens that the prompt is cut at and padded to [default: 512, or what the model reads if fewer]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_sequence_length: Option<usize>,
}

/// How an image model is run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Running")]
pub struct ImageRunOptions {
    /// Load, run and free one part of the model after the other [default: when all of them do not fit]
    #[arg(long, env = "ONEBIT_LOW_MEMORY")]
    pub low_memory: bool,
    /// Megabytes that making pixels may take; a picture that needs more is made in tiles [default: the model's choice]
    #[arg(long, value_name = "MB", value_parser = count)]
    pub decode_memory: Option<usize>,
    /// Device to run on
    #[arg(long, value_enum, default_value = "auto", env = "ONEBIT_BACKEND")]
    pub backend: BackendName,
    /// Threads of the CPU backend [default: one for each core that the process may use]
    #[arg(long, value_name = "N", env = "ONEBIT_THREADS", value_parser = threads)]
    pub threads: Option<usize>,
    /// Precision of the inputs of packed matmuls
    #[arg(long, value_enum, default_value = "auto", env = "ONEBIT_ACTIVATIONS")]
    pub activations: ActivationsName,
    /// Keep stored offsets even where they follow from the scales
    #[arg(long, env = "ONEBIT_KEEP_BIASES")]
    pub keep_biases: bool,
    /// Read weight files into memory instead of mapping them
    #[arg(long, env = "ONEBIT_NO_MMAP")]
    pub no_mmap: bool,
}

impl ImageRunOptions {
    /// The options that text and image models share.
    #[must_use]
    pub fn shared(&self) -> RunOptions {
        RunOptions {
            backend: self.backend,
            threads: self.threads,
            activations: self.activations,
            keep_biases: self.keep_biases,
            no_mmap: self.no_mmap,
            ctx: None,
            kv_quant: KvQuant::None,
            cache_repack: KeepIn::Nowhere,
            q2_0_group: None,
        }
    }

    /// What the options of a text model mean for an image model beside it.
    #[must_use]
    pub fn of(shared: &RunOptions) -> Self {
        ImageRunOptions {
            low_memory: false,
            decode_memory: None,
            backend: shared.backend,
            threads: shared.threads,
            activations: shared.activations,
            keep_biases: shared.keep_biases,
            no_mmap: shared.no_mmap,
        }
    }

    /// The same options as arguments, for a process that runs with them.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![format!("--backend={}", self.backend.as_str())];
        args.push(format!("--activations={}", self.activations.as_str()));
        args.extend(self.threads.map(|n| format!("--threads={n}")));
        args.extend(self.decode_memory.map(|mb| format!("--decode-memory={mb}")));
        let flags =
            [(self.low_memory, "--low-memory"), (self.keep_biases, "--keep-biases"), (self.no_mmap, "--no-mmap")];
        args.extend(flags.iter().filter(|(on, _)| *on).map(|(_, flag)| (*flag).to_owned()));
        args
    }
}

/// Tasks around pictures.
#[derive(Debug, Subcommand)]
pub enum ImageTask {
    /// Make the same pictures with several models, side by side on one sheet
    Compare(CompareArgs),
}

/// Arguments of `image compare`.
#[derive(Debug, Args)]
#[command(after_help = "\
The sheet has a row for each prompt and a column for each model and size; time and peak memory stand below each picture. \
A picture that fails, or a model that does not fit, becomes a cell with the reason. Beside sheet.png, sheet.json has the \
numbers.

Examples:
  onebit image compare sprout sprout-ternary --prompts prompts.txt
  onebit image compare image-binary-4b image-ternary-4b --prompts prompts.txt --sizes 512x512,1024x1024 -o sheet.png")]
pub struct CompareArgs {
    /// Models, one column or more each
    #[arg(value_name = "MODEL", required = true, num_args = 1..)]
    pub models: Vec<String>,
    /// A text file with a prompt on each line
    #[arg(long, value_name = "FILE")]
    pub prompts: PathBuf,
    /// Sizes, separated by commas [default: 512x512, or what each model was made for if smaller]
    #[arg(long, value_name = "WIDTHxHEIGHT,...", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<ImageSize>,
    /// Seed of all pictures
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// Whose noise the seed stands for
    #[arg(long, value_enum, default_value = "torch")]
    pub noise_rng: NoiseRngName,
    /// Steps from noise to picture
    #[arg(long, value_name = "N", default_value = "4", value_parser = count)]
    pub steps: usize,
    /// The sheet
    #[arg(short, long, value_name = "FILE", default_value = "sheet.png")]
    pub output: PathBuf,
    /// Write over files that exist
    #[arg(long)]
    pub force: bool,
    /// The numbers on stdout as well
    #[arg(long)]
    pub json: bool,
    /// Nothing on stderr but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// How to run
    #[command(flatten)]
    pub run: ImageRunOptions,
}

/// `WIDTHxHEIGHT`.
fn size(text: &str) -> Result<ImageSize, String> {
    let side = |side: &str| side.trim().parse::<usize>().ok();
    match text.split_once(['x', 'X', '×']).and_then(|(w, h)| Some((side(w)?, side(h)?))) {
        Some((width, height)) => image_size(width, height),
        None => Err("wanted WIDTHxHEIGHT in pixels, such as 512x512".to_owned()),
    }
}

/// A size that a model can make.
///
/// # Errors
/// One sentence with the two nearest sizes.
pub fn image_size(width: usize, height: usize) -> Result<ImageSize, String> {
    if let Some(size) = ImageSize::new(width, height) {
        return Ok(size);
    }
    let most = ImageSize::MAX_SIDE;
    let down = |side: usize| (side / PATCH * PATCH).clamp(PATCH, most);
    let up = |side: usize| side.min(most).next_multiple_of(PATCH).clamp(PATCH, most);
    let (small, large) = ((down(width), down(height)), (up(width), up(height)));
    let name = |(width, height): (usize, usize)| format!("{width}x{height}");
    let nearest = if small == large {
        format!("the nearest is {}", name(large))
    } else {
        format!("the nearest are {} and {}", name(small), name(large))
    };
    Err(format!("{width}x{height} cannot be made: sides are multiples of {PATCH} from {PATCH} to {most}; {nearest}"))
}

/// `auto` or a number.
fn shift(text: &str) -> Result<Shift, String> {
    match text {
        "auto" => Ok(Shift::Empirical),
        _ => match text.parse::<f64>() {
            Ok(mu) if mu.is_finite() => Ok(Shift::Fixed(mu)),
            _ => Err("wanted auto or a number such as 3.0".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn sizes_that_cannot_be_made_name_their_neighbours() {
        assert_eq!(size("512x768").map(|s| (s.width(), s.height())), Ok((512, 768)));
        let sentence = |text: &str| size(text).expect_err(text);
        assert!(sentence("500x700").ends_with("the nearest are 496x688 and 512x704"), "{}", sentence("500x700"));
        assert!(sentence("520x512").ends_with("the nearest are 512x512 and 528x512"));
        assert!(sentence("8x512").ends_with("the nearest is 16x512"));
        assert!(sentence("512x99999").ends_with("the nearest is 512x4096"));
        assert!(sentence("0x0").ends_with("the nearest is 16x16"));
        for text in ["512", "512x", "axb", "", "-16x16", "512x512x3"] {
            assert!(sentence(text).contains("WIDTHxHEIGHT"), "{text}");
        }
    }

    #[test]
    fn a_process_of_its_own_runs_with_the_same_options() {
        #[derive(Parser)]
        struct Only {
            #[command(flatten)]
            run: ImageRunOptions,
        }
        let given = [
            "x",
            "--low-memory",
            "--decode-memory",
            "70",
            "--backend",
            "cpu",
            "--threads",
            "3",
            "--activations",
            "int9",
            "--keep-biases",
            "--no-mmap",
        ];
        let parsed = Only::parse_from(given).run;
        let again = Only::parse_from(["x".to_owned()].into_iter().chain(parsed.to_args())).run;
        assert_eq!(format!("{parsed:?}"), format!("{again:?}"));
        let shared = parsed.shared();
        assert!(shared.keep_biases && shared.no_mmap && shared.threads == Some(3));
        let back = ImageRunOptions { low_memory: true, decode_memory: Some(70), ..ImageRunOptions::of(&shared) };
        assert_eq!(format!("{back:?}"), format!("{parsed:?}"));
    }

    #[test]
    fn shifts() {
        assert_eq!(shift("auto"), Ok(Shift::Empirical));
        assert_eq!(shift("3.0"), Ok(Shift::Fixed(3.0)));
        assert!(shift("NaN").is_err() && shift("much").is_err());
    }
}

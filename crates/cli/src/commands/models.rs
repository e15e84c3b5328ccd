//! `onebit models`: the published packs, what they take, and whether they fit here; and the models that are built in.

use crate::args::ModelsArgs;
use crate::builtin::BuiltIn;
use crate::{backends, kept, load, terminal};
use anyhow::Result;
use onebit_engine::OVERHEAD;
use onebit_hub::packs::{Alphabet, PACKS, Pack, Support};
use onebit_hub::{HubConfig, RepoRef};
use onebit_models::image::{text_encoder, transformer};
use onebit_models::outline;
use onebit_ops::{Backend, KvFormat};
use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    title: &'static str,
    kind: &'static str,
    answers_with: &'static str,
    bits: u32,
    group: u32,
    parameters: u64,
    /// It is part of the program.
    built_in: bool,
    /// It runs when no model is named.
    default: bool,
    repository: Option<&'static str>,
    gguf_repository: Option<&'static str>,
    gguf_type: Option<&'static str>,
    download_bytes: Option<u64>,
    quality: Option<f64>,
    quality_of: Option<&'static str>,
    context: u64,
    memory_bytes: Option<u64>,
    fits: Option<bool>,
    supported: bool,
    unsupported_because: Option<&'static str>,
    downloaded: bool,
}

/// Mean benchmark scores that the makers published, with the number of tasks: two suites, not comparable with each
/// other.
const QUALITY: [(&str, f64, &str); 8] = [
    ("bonsai-1.7b", 49.6, "mean of 6 tasks"),
    ("bonsai-4b", 62.7, "mean of 6 tasks"),
    ("bonsai-8b", 70.5, "mean of 6 tasks"),
    ("bonsai-27b", 76.11, "mean of 15 tasks"),
    ("ternary-1.7b", 58.5, "mean of 6 tasks"),
    ("ternary-4b", 70.7, "mean of 6 tasks"),
    ("ternary-8b", 75.5, "mean of 6 tasks"),
    ("ternary-27b", 80.49, "mean of 15 tasks"),
];

/// Bytes of the vision tower that the 27B MLX packs carry, and that text does not load.
const VISION_TOWER: u64 = 921_460_192;

/// Runs the command.
///
/// # Errors
/// A backend that is not there; output that cannot be written.
pub fn run(args: &ModelsArgs) -> Result<()> {
    if let Some(kept_in) = &args.clear_cache {
        let folder = kept::folder(kept_in)?;
        let (files, bytes) = kept::clear(&folder)?;
        let (files, bytes) = (terminal::count(files as u64), terminal::bytes(bytes));
        writeln!(std::io::stdout(), "{}: {files} files of repacked weights deleted, {bytes}", folder.display())?;
        return Ok(());
    }
    let backend = backends::open_to_look(args.backend, None)?;
    let free = backends::free_memory(&*backend)?;
    let cache = HubConfig::from_env().ok().map(|config| config.cache());
    let downloaded = |pack: &Pack| {
        let repos = [Some(pack.mlx_repo), pack.gguf_repo];
        let there = |id: &str| {
            RepoRef::parse(id).is_ok_and(|repo| cache.as_ref().is_some_and(|cache| cache.resolve(&repo).is_ok()))
        };
        repos.into_iter().flatten().any(there)
    };
    let packs = PACKS.iter().map(|pack| Ok(row(pack, args, &*backend, free, downloaded(pack))));
    let rows: Vec<Row> = packs.chain(BuiltIn::ALL.map(built_in)).collect::<Result<_>>()?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(());
    }
    writeln!(out, "{}", table(&rows, args, free))?;
    Ok(())
}

fn row(pack: &Pack, args: &ModelsArgs, backend: &dyn Backend, free: u64, downloaded: bool) -> Row {
    let format = if pack.bits == 1 { "MLX 1-bit" } else { "MLX 2-bit" };
    let unsupported_because = match pack.support {
        Support::Text if backends::runs_file(backend, format) => None,
        Support::Text => Some("no kernels on this device"),
        Support::Rotated => Some("rotated weights"),
        Support::Image if backend.caps().images => None,
        Support::Image => Some("no kernels on this device"),
    };
    let memory_bytes = memory_bytes(pack, args);
    let quality = QUALITY.iter().find(|(name, ..)| *name == pack.short);
    Row {
        name: pack.short,
        title: pack.title,
        kind: kind(pack.alphabet),
        answers_with: if pack.support == Support::Image { "pictures" } else { "text" },
        bits: pack.bits,
        group: pack.group,
        parameters: pack.params,
        built_in: false,
        default: false,
        repository: Some(pack.mlx_repo),
        gguf_repository: pack.gguf_repo,
        gguf_type: pack.gguf.map(|(kind, _)| kind),
        download_bytes: pack.mlx_bytes,
        quality: quality.map(|q| q.1),
        quality_of: quality.map(|q| q.2),
        context: pack.context,
        memory_bytes,
        fits: memory_bytes.map(|needed| needed <= free),
        supported: unsupported_because.is_none(),
        unsupported_because,
        downloaded,
    }
}

/// A model that is part of the program: its own headers tell what it is.
fn built_in(model: BuiltIn) -> Result<Row> {
    let open = |path: &Path| load::open_any(path, &load::Options::default());
    let path = model.located().path;
    let (parameters, context) = match model.image_folders() {
        Some(folders) => {
            let transformer = transformer::outline(&open(&folders.transformer)?)?.0;
            (transformer.parameters, text_encoder::outline(&open(&folders.text_encoder)?)?.0.context)
        }
        None => {
            let facts = outline(&open(&path)?)?.0;
            (facts.parameters, facts.context)
        }
    };
    Ok(Row {
        name: model.name(),
        title: model.name(),
        kind: kind(model.alphabet()),
        answers_with: if model.draws() { "pictures" } else { "text" },
        bits: if model.alphabet() == Alphabet::Binary { 1 } else { 2 },
        group: 128,
        parameters,
        built_in: true,
        default: [BuiltIn::TEXT, BuiltIn::IMAGE].contains(&model),
        repository: None,
        gguf_repository: None,
        gguf_type: None,
        download_bytes: Some(model.bytes()),
        quality: None,
        quality_of: None,
        context: context as u64,
        memory_bytes: None,
        fits: None,
        supported: true,
        unsupported_because: None,
        downloaded: true,
    })
}

fn kind(alphabet: Alphabet) -> &'static str {
    match alphabet {
        Alphabet::Binary => "binary",
        Alphabet::Ternary => "ternary",
    }
}

/// Weights, keys and values at the asked context, state and the fixed rest: the formula of every memory plan.
fn memory_bytes(pack: &Pack, args: &ModelsArgs) -> Option<u64> {
    if pack.support != Support::Text {
        return None;
    }
    let vision = if pack.arch == "qwen35" { VISION_TOWER } else { 0 };
    let weights = pack.mlx_bytes? - vision;
    let kv = args.kv_quant.resolve(onebit_ops::Activations::I8G128);
    // Cached heads have 128 or 256 values; either way blocks of 32 fill them.
    let scaled = pack.kv_bytes_per_token * kv.head_bytes(128) as u64 / KvFormat::F16.head_bytes(128) as u64;
    let tokens = (args.ctx as u64).min(pack.context);
    // One running sequence and one saved state.
    Some(weights + tokens * scaled + 2 * pack.state_bytes + OVERHEAD)
}

fn table(rows: &[Row], args: &ModelsArgs, free: u64) -> String {
    let memory_title = format!("memory at {}", terminal::count(args.ctx as u64));
    let header = ["name", "size", "quality", memory_title.as_str(), "context", "here"].map(str::to_owned);
    let cell = |row: &Row| {
        let here = match (row.unsupported_because, row.fits, row.downloaded) {
            (Some(why), ..) => format!("not yet: {why}"),
            (None, None, _) if row.built_in => {
                let makes = if row.answers_with == "text" { "answers" } else { "draws simple shapes" };
                format!("built in: {makes}{}", if row.default { " when no model is named" } else { "" })
            }
            (None, None, there) => {
                format!("makes {}{}", row.answers_with, if there { ", downloaded" } else { "" })
            }
            (None, Some(false), _) => "does not fit".to_owned(),
            (None, _, true) => "fits, downloaded".to_owned(),
            (None, _, false) => "fits".to_owned(),
        };
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let marked = |q: f64| format!("{q:.1}{}", if row.quality_of == Some("mean of 15 tasks") { "*" } else { " " });
        [
            row.name.to_owned(),
            or_dash(row.download_bytes.map(terminal::bytes)),
            or_dash(row.quality.map(marked)),
            or_dash(row.memory_bytes.map(terminal::bytes)),
            if row.supported && row.memory_bytes.is_some() { terminal::count(row.context) } else { "-".to_owned() },
            here,
        ]
    };
    let lines: Vec<[String; 6]> = std::iter::once(header).chain(rows.iter().map(cell)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        let mut text = format!("{:<w$}", line[0], w = widths[0]);
        for (column, cell) in line.iter().enumerate().take(5).skip(1) {
            text.push_str(&format!("  {cell:>w$}", w = widths[column]));
        }
        text.push_str(&format!("  {}", line[5]));
        let text = if i == 0 { terminal::styled(&text, terminal::BOLD, terminal::stdout_colours()) } else { text };
        out.push_str(&text);
        out.push('\n');
    }
    out.push_str(&format!(
        "\n{} of memory are free here. Quality is the makers' mean of 6 tasks (* of 15 others; not comparable).\n\
         `onebit pull NAME` downloads one, `onebit info NAME` says more before that.",
        terminal::bytes(free)
    ));
    out
}

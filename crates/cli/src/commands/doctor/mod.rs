//! `onebit doctor`: is this machine, and is this download, giving right results?
//!
//! | file | idea |
//! |---|---|
//! | `probe` | packed matrices on every backend against the scalar reference |
//! | `random` | matrices and networks made up from a seed |
//! | `network` | whole small networks on every backend, against the reference and against known answers |
//! | `packs` | which published pack a file is, and what must hold for it |
//! | `codes` | counting the codes of a pack |
//! | `image` | the parts of an image model, and a small picture on every backend |
//! | `vectors` | token ids and logits that published packs are known to give |

mod codes;
mod image;
mod network;
mod packs;
mod probe;
mod random;
mod vectors;

use crate::args::{BackendName, DoctorArgs};
use crate::backends::{self, Candidate, Machine, Tried};
use crate::terminal::{BOLD, stdout_colours, styled};
use crate::{load, memory, resolve, terminal};
use anyhow::{Result, bail};
use onebit_checkpoint::Kind;
use onebit_ops::KvFormat;
use std::fmt::Display;
use std::io::Write;

/// The lines of the report, and how many of them are faults.
struct Findings {
    passed: usize,
    failed: usize,
    skipped: usize,
    broken: Option<std::io::Error>,
}

impl Findings {
    fn line(&mut self, mark: &str, style: &str, text: &str) {
        let mark = styled(&format!("{mark:<5}"), style, stdout_colours());
        let mut out = std::io::stdout().lock();
        let line = format!("{mark} {text}");
        if let Err(error) = writeln!(out, "{}", line.trim_end()).and_then(|()| out.flush()) {
            self.broken.get_or_insert(error);
        }
    }

    fn heading(&mut self, text: &str) {
        self.line("", "", "");
        self.line(&styled(text, BOLD, stdout_colours()), "", "");
    }

    fn note(&mut self, text: &str) {
        self.line("", "", text);
    }

    fn pass(&mut self, text: impl Display) {
        self.passed += 1;
        self.line("ok", "\x1b[32m", &text.to_string());
    }

    fn fail(&mut self, text: impl Display) {
        self.failed += 1;
        self.line("FAIL", "\x1b[31m", &text.to_string());
    }

    fn skip(&mut self, text: impl Display) {
        self.skipped += 1;
        self.line("skip", terminal::DIM, &text.to_string());
    }

    /// A check by its name: what was found, and whether that is right.
    fn check(&mut self, right: bool, name: &str, found: impl Display) {
        if right { self.pass(format!("{name}: {found}")) } else { self.fail(format!("{name}: {found}")) }
    }
}

/// Runs the command.
///
/// # Errors
/// The number of failed checks; files that cannot be opened.
pub fn run(args: &DoctorArgs) -> Result<()> {
    if args.tune {
        return tune();
    }
    let mut findings = Findings { passed: 0, failed: 0, skipped: 0, broken: None };
    let Machine { candidates, absent } = machine(args)?;
    describe(&candidates, &absent, &mut findings);
    network::check(&candidates, &args.run, &mut findings);
    if candidates.iter().all(|c| c.name == "reference") {
        findings.skip("kernels: only the reference was asked for, and it is what the others are compared with");
    }
    let model = args.model.name();
    if model.is_none() || args.bits.is_some() || args.group.is_some() {
        findings.heading("Kernels on random weights");
        let bits: Vec<u8> = match args.bits.as_deref().and_then(|b| b.parse().ok()) {
            Some(bits) => vec![bits],
            None => vec![1, 2],
        };
        let group = args.group.as_deref().and_then(|g| g.parse().ok()).unwrap_or(128);
        probe::random_weights(&candidates, &args.run, &bits, group, &mut findings)?;
    }
    if let Some(word) = model {
        let located = resolve::locate(&word, &*backends::open_to_look(args.run.backend, args.run.threads)?)?;
        if let Some(choice) = &located.choice {
            terminal::say(&format!("note: {choice}"));
        }
        let source = load::open_any(&located.path, &args.run.files())?;
        if let Kind::Image { .. } = source.checkpoint().kind() {
            findings.heading(&format!("Contents of {}", located.name));
            image::check(&located.path, args, &candidates, &mut findings)?;
            return conclude(findings);
        }
        load::refuse_kind(&located.path.display().to_string(), source.checkpoint().kind())?;
        findings.heading(&format!("Kernels on the weights of {}", located.name));
        probe::model_weights(&candidates, &args.run, &source, &mut findings)?;
        findings.heading(&format!("Contents of {}", located.name));
        let pack = packs::check(&source, &mut findings)?;
        if let Some(pack) = pack {
            vectors::check(&located, &source, pack, args, &mut findings)?;
        }
    }
    conclude(findings)
}

/// Measures and keeps; says what was found.
fn tune() -> Result<()> {
    let (device, tried) = backends::tune()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{device}: a product of one row")?;
    for (at, Tried { choice, seconds }) in tried.iter().enumerate() {
        let mark = if at == 0 { "kept " } else { "" };
        writeln!(out, "{mark:<5} {:7.1} us  {choice}", seconds * 1e6)?;
    }
    Ok(())
}

fn conclude(findings: Findings) -> Result<()> {
    if let Some(error) = findings.broken {
        return Err(error.into());
    }
    let Findings { passed, failed, skipped, .. } = findings;
    if failed > 0 {
        bail!("{failed} of {} checks failed", passed + failed);
    }
    let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
    writeln!(std::io::stdout(), "\n{passed} checks passed{skipped}")?;
    Ok(())
}

/// The backends to check, and those that are none.
fn machine(args: &DoctorArgs) -> Result<Machine> {
    let mut machine = backends::all(args.run.backend, args.run.threads)?;
    // Fails with its sentence for a backend that this build or machine lacks.
    backends::open_to_look(args.run.backend, args.run.threads)?;
    machine.candidates.retain(|c| match args.run.backend {
        BackendName::Auto => true,
        asked => c.backend.caps().name == asked.as_str(),
    });
    Ok(machine)
}

fn describe(candidates: &[Candidate], absent: &[(&str, String)], findings: &mut Findings) {
    findings.line(&styled("This machine", BOLD, stdout_colours()), "", "");
    findings.note(&format!(
        "onebit {} on {} {}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    ));
    findings.note(&format!(
        "{} of {} of memory are free",
        terminal::bytes(memory::free()),
        terminal::bytes(memory::total())
    ));
    for Candidate { name, backend } in candidates {
        let caps = backend.caps();
        let list = |kinds: Vec<String>| kinds.join(", ");
        let own = match backend.free_memory() {
            Ok(Some(free)) => format!("; {} of its memory are free", terminal::bytes(free)),
            _ => String::new(),
        };
        findings.note(&format!(
            "{name}: {}; activations {}; keys and values {}{own}",
            caps.device,
            list(caps.activations.iter().map(ToString::to_string).collect()),
            list(caps.kv_formats.iter().map(KvFormat::to_string).collect())
        ));
    }
    let mut measured: Vec<&str> = Vec::new();
    for Candidate { backend, .. } in candidates {
        // The tiers of one device read the same memory.
        let device = backend.caps().name.as_str();
        if measured.contains(&device) {
            continue;
        }
        measured.push(device);
        match backend.read_bandwidth() {
            Ok(Some(read)) => findings
                .note(&format!("{device} reads its memory at {read:.1} GB/s, which bounds the speed of answers")),
            Ok(None) => {}
            Err(error) => findings.fail(format!("{device} reading its memory: {error}")),
        }
    }
    for (name, why) in absent {
        findings.note(&format!("no {name}: {why}"));
    }
}

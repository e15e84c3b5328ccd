//! The report on a terminal.

use super::report::{AbsentRow, KernelRow, MemoryRow, Report};
use crate::terminal::{BOLD, bytes, count, stdout_colours, styled};
use std::fmt::Write;

/// The whole report.
pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: String| {
        let label = styled(&format!("{label:<13}"), BOLD, stdout_colours());
        out.push_str(&format!("{label}{text}\n"));
    };
    line("model", report.name.clone());
    line("path", report.path.clone());
    let kind = if report.runs { report.kind.clone() } else { format!("{} (does not run)", report.kind) };
    line("kind", kind);
    let files = match report.files.as_slice() {
        [one] => one.clone(),
        several => format!("{} files", several.len()),
    };
    line(
        "container",
        format!(
            "{}, {files}, {} tensors, {}",
            report.container,
            count(report.tensors as u64),
            bytes(report.tensor_bytes)
        ),
    );
    if let Some(m) = &report.model {
        let layers = match m.delta_layers {
            0 => format!("{} layers", m.layers),
            delta => format!("{} layers ({} full attention, {delta} delta rule)", m.layers, m.attention_layers),
        };
        line(
            "architecture",
            format!(
                "{}: {layers}, width {}, vocabulary {}",
                m.architecture,
                count(m.hidden as u64),
                count(m.vocab as u64)
            ),
        );
        line("context", format!("{} tokens", count(m.context as u64)));
        line(
            "weights",
            format!(
                "{} parameters in {} matrices, {}, {:.3} bits each",
                parameters(m.parameters),
                count(m.matrices as u64),
                bytes(m.matrix_bytes),
                m.bits_per_weight
            ),
        );
    }
    if let Some(image) = &report.image {
        out.push_str(&super::image::render(image));
        return out + &problems(report);
    }
    if let Some(repacked) = &report.repacked {
        line("repacked", format!("{}, {}", repacked.path, bytes(repacked.bytes)));
    }
    if let Some(text) = &report.text {
        let template = match (text.chat_template, text.thinking, text.thinking_switch) {
            (false, ..) => "no chat template",
            (true, false, _) => "chat template",
            (true, true, false) => "chat template with thinking",
            (true, true, true) => "chat template with thinking that can be switched",
        };
        let ids: Vec<String> = text.end_tokens.iter().map(u32::to_string).collect();
        line("text", format!("{} tokens, {template}, end tokens {}", count(text.tokens as u64), ids.join(", ")));
        let numbers = [
            ("temperature", text.temperature),
            ("top-k", text.top_k.map(|k| k as f64)),
            ("top-p", text.top_p),
            ("min-p", text.min_p),
        ];
        let said: Vec<String> = numbers.iter().filter_map(|(n, v)| v.map(|v| format!("{n} {v}"))).collect();
        if !said.is_empty() {
            line("sampling", format!("{} (the makers' own)", said.join(", ")));
        }
    }
    out.push_str(&parts(report));
    out.push_str(&kernels(&report.kernels, &report.absent));
    if let Some(memory) = &report.memory {
        out.push_str(&memory_text(memory));
    }
    if let Some(check) = &report.check {
        let rows = [
            format!("{} symmetric", check.symmetric),
            format!("{} symmetric but for the rounding of {} groups", check.rounding_only, check.rounding_groups),
            format!("{} affine", check.affine),
            format!("{} stored without offsets", check.without_offsets),
        ];
        let _ = write!(out, "\n{}\n", styled("scales", BOLD, stdout_colours()));
        rows.iter().for_each(|row| out.push_str(&format!("  {row}\n")));
        let _ = writeln!(
            out,
            "  {} of {} bytes of offsets need not stay in memory",
            count(check.shed_bytes),
            count(check.offset_bytes)
        );
        check.deviating.iter().for_each(|row| out.push_str(&format!("  {row}\n")));
    }
    out + &problems(report)
}

fn problems(report: &Report) -> String {
    report.problems.iter().map(|problem| format!("\nproblem: {problem}\n")).collect()
}

/// `26.89 B`, `3.1 M`.
pub(super) fn parameters(n: u64) -> String {
    if n >= 100_000_000 { format!("{:.2} B", n as f64 / 1e9) } else { format!("{:.1} M", n as f64 / 1e6) }
}

fn parts(report: &Report) -> String {
    if report.parts.is_empty() {
        return String::new();
    }
    let mut rows = vec![["part", "matrices", "bytes", "format"].map(str::to_owned)];
    rows.extend(
        report.parts.iter().map(|p| [p.part.clone(), count(p.matrices as u64), bytes(p.bytes), p.format.clone()]),
    );
    rows.extend(
        report.other.iter().map(|o| [o.group.clone(), count(o.tensors as u64), bytes(o.bytes), "-".to_owned()]),
    );
    table(&rows, &[false, true, true, false])
}

/// One row for each format, one column for each backend.
fn kernels(rows: &[KernelRow], absent: &[AbsentRow]) -> String {
    let mut backends: Vec<&str> = Vec::new();
    let mut formats: Vec<&str> = Vec::new();
    for row in rows {
        if !backends.contains(&row.backend.as_str()) {
            backends.push(&row.backend);
        }
        if !formats.contains(&row.format.as_str()) {
            formats.push(&row.format);
        }
    }
    if formats.is_empty() {
        return String::new();
    }
    let mut lines =
        vec![std::iter::once("kernels").chain(backends.iter().copied()).map(str::to_owned).collect::<Vec<_>>()];
    for format in &formats {
        let mut line = vec![(*format).to_owned()];
        for backend in &backends {
            let found = rows.iter().find(|r| r.backend == *backend && r.format == *format);
            line.push(found.and_then(|r| r.kernel.clone()).unwrap_or_else(|| "none".to_owned()));
        }
        lines.push(line);
    }
    let mut out = table(&lines, &vec![false; backends.len() + 1]);
    absent.iter().for_each(|row| out.push_str(&format!("  no {}: {}\n", row.backend, row.reason)));
    out
}

fn memory_text(m: &MemoryRow) -> String {
    let mut out = format!("\n{}  {}\n", styled("memory", BOLD, stdout_colours()), m.backend);
    let state = match m.state_bytes_per_sequence {
        0 => String::new(),
        state => format!(" + {} of state for each sequence", bytes(state)),
    };
    let _ = writeln!(
        out,
        "  {} of weights + {} of {} keys and values for each token{state} + {} for the rest",
        bytes(m.weights),
        bytes(m.kv_bytes_per_token),
        m.kv,
        bytes(m.overhead)
    );
    let at: Vec<String> =
        m.at.iter().map(|(context, total)| format!("{} at {} tokens", bytes(*total), count(*context as u64))).collect();
    let _ = writeln!(out, "  {}", at.join(", "));
    match (m.context, m.total, &m.refusal) {
        (Some(context), Some(total), _) => {
            let _ = writeln!(
                out,
                "  here: {} free, so a context of {} tokens with {}",
                bytes(m.free),
                count(context as u64),
                bytes(total)
            );
        }
        (_, _, Some(refusal)) => {
            let _ = writeln!(out, "  here: {refusal}");
        }
        _ => {}
    }
    out
}

/// Columns side by side; the first row is the heading. `right` says which columns hold numbers.
fn table(rows: &[impl AsRef<[String]>], right: &[bool]) -> String {
    let width = |c: usize| rows.iter().map(|r| r.as_ref()[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..right.len()).map(width).collect();
    let mut out = String::from("\n");
    for (i, row) in rows.iter().enumerate() {
        let cells = row
            .as_ref()
            .iter()
            .zip(&widths)
            .zip(right)
            .map(|((cell, &w), &right)| if right { format!("{cell:>w$}") } else { format!("{cell:<w$}") });
        let text = cells.collect::<Vec<_>>().join("  ");
        let text = text.trim_end();
        out.push_str(&if i == 0 { styled(text, BOLD, stdout_colours()) } else { text.to_owned() });
        out.push('\n');
    }
    out
}

//! What may be written where: answers on stdout, everything else on stderr, colours and bars only on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Whether stderr shows colours: it is a terminal that can, and `NO_COLOR` is not set.
#[must_use]
pub fn stderr_colours() -> bool {
    std::io::stderr().is_terminal() && colours_wanted()
}

/// Whether stdout shows colours.
#[must_use]
pub fn stdout_colours() -> bool {
    std::io::stdout().is_terminal() && colours_wanted()
}

fn colours_wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// Writes a line to stderr. A reader of stderr that has gone away is no reason to stop.
pub fn say(line: &str) {
    say_part(&format!("{line}\n"));
}

/// Writes text to stderr without ending the line.
pub fn say_part(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Starts faint text.
pub const DIM: &str = "\x1b[2m";
/// Starts bold text.
pub const BOLD: &str = "\x1b[1m";
/// Back to plain text.
pub const PLAIN: &str = "\x1b[0m";

/// `text` in a style, where colours are shown.
#[must_use]
pub fn styled(text: &str, style: &str, colours: bool) -> String {
    if colours { format!("{style}{text}{PLAIN}") } else { text.to_owned() }
}

/// Text without the control characters that a terminal would obey.
#[must_use]
pub fn visible(text: &str) -> String {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().map(|c| if harmless(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// A progress bar over bytes on stderr; invisible when stderr is no terminal. It appears after a moment, so that
/// quick work leaves no flicker.
#[must_use]
pub fn bytes_bar(what: &str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {wide_bar:.dim} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}")
}

/// A progress bar over counted things.
#[must_use]
pub fn count_bar(what: &str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {wide_bar:.dim} {pos}/{len}")
}

/// A progress bar over steps that take seconds each, with the time that is left.
#[must_use]
pub fn steps_bar(what: &str, total: u64) -> ProgressBar {
    let bar = bar(what, total, "{msg} {wide_bar:.dim} {pos}/{len} {elapsed}, {eta} left");
    // The clock goes on while a step does.
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn bar(what: &str, total: u64, template: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what.to_owned());
    // The templates are constants: one that does not parse is found by the first run of any test.
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// `5.13 GB`, `412 MB`, `17 kB`: decimal units, three digits.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [(&str, f64); 3] = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let value = n as f64;
    match UNITS.iter().find(|(_, size)| value >= *size * 0.9995) {
        Some((unit, size)) => {
            let scaled = value / size;
            let digits = if scaled < 9.995 { 2 } else { usize::from(scaled < 99.95) };
            format!("{scaled:.digits$} {unit}")
        }
        None => format!("{n} B"),
    }
}

/// `262,144`: a count with separators.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `0.42 s`, `12.3 s`, `4 min 5 s`.
#[must_use]
pub fn seconds(d: Duration) -> String {
    let s = d.as_secs_f64();
    if s < 9.995 {
        format!("{s:.2} s")
    } else if s < 120.0 {
        format!("{s:.1} s")
    } else {
        format!("{} min {} s", d.as_secs() / 60, d.as_secs() % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_cannot_drive_the_terminal() {
        assert_eq!(visible("a\x1b[2Jb\tc\n"), "a\u{fffd}[2Jb\tc\n");
    }

    #[test]
    fn numbers_as_people_read_them() {
        assert_eq!(
            [5_128_837_600, 412_262_400, 17_432, 999, 999_999, 0].map(bytes),
            ["5.13 GB", "412 MB", "17.4 kB", "999 B", "1.00 MB", "0 B"]
        );
        assert_eq!([0, 999, 1000, 262_144].map(count), ["0", "999", "1,000", "262,144"]);
        assert_eq!(seconds(Duration::from_millis(420)), "0.42 s");
        assert_eq!(seconds(Duration::from_secs(245)), "4 min 5 s");
    }
}

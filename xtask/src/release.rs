//! `cargo xtask release`: one tarball with the stripped binary and what belongs to it.

use crate::process::{cargo, output, run as run_command, succeeds};
use crate::target_dir;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILES: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "docs/eval.md",
    "docs/tuning.md",
    "docs/formats.md",
    "docs/image.md",
    "docs/screenshot.svg",
];
/// The licence of the font in the binary goes wherever the font goes.
const FONT_LICENSE: (&str, &str) = ("crates/cli/assets/NotoSans-Subset.OFL.txt", "LICENSE-OFL-NotoSans");
const COMPLETIONS: &[(&str, &str)] = &[("bash", "onebit.bash"), ("zsh", "_onebit"), ("fish", "onebit.fish")];
/// The golden case that the bare root runs.
const CASE: &str = "testdata/golden/qwen3_1bit_tied_yarn";

/// Builds the tarball in `target/release-tarball`; with `check`, runs it where there is nothing but a C library.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let host = host()?;
    let build = ["build", "--release", "--package", "onebit", "--config", "profile.release.strip='symbols'"];
    run_command(cargo().current_dir(root).args(build).env("RUSTFLAGS", neutral_paths(root)))?;
    let target = target_dir(root);
    let binary = target.join("release/onebit");
    let version = output(Command::new(&binary).arg("--version"))?;
    let version = version.split_whitespace().last().context("onebit --version prints no version")?;

    let name = format!("onebit-{version}-{host}");
    let out = target.join("release-tarball");
    let stage = out.join(&name);
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    for folder in ["docs", "completions", "man"] {
        fs::create_dir_all(stage.join(folder))?;
    }
    fs::copy(&binary, stage.join("onebit"))?;
    for file in FILES {
        fs::copy(root.join(file), stage.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    fs::copy(root.join(FONT_LICENSE.0), stage.join(FONT_LICENSE.1)).context("the licence of the font")?;
    for (shell, file) in COMPLETIONS {
        let script = output(Command::new(&binary).args(["completions", shell]))?;
        fs::write(stage.join("completions").join(file), script)?;
    }
    write_manuals(&binary, &stage.join("man"), version)?;

    let tarball = out.join(format!("{name}.tar.gz"));
    // Equal inputs give equal bytes: sorted, without times and owners.
    let tar = [
        "--sort=name",
        "--mtime=2026-01-01",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--use-compress-program=gzip -n9",
    ];
    run_command(Command::new("tar").args(tar).arg("-C").arg(&out).arg("-cf").arg(&tarball).arg(&name))?;
    println!("{} ({} KiB)", tarball.display(), fs::metadata(&tarball)?.len().div_ceil(1024));
    if check { run_in_bare_root(root, &tarball, &name) } else { Ok(()) }
}

/// Compiler flags that keep the builder's folders out of panic messages.
fn neutral_paths(root: &Path) -> String {
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"));
    let home = home.map_or_else(|_| String::new(), |home| format!("--remap-path-prefix={home}=cargo "));
    format!("{home}--remap-path-prefix={}=onebit", root.display())
}

/// The Debian release of this machine: the oldest that a binary built here is promised to run on.
fn release_name() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VERSION_CODENAME="));
    line.unwrap_or("stable").to_owned()
}

fn host() -> Result<String> {
    let text = output(Command::new("rustc").arg("-vV"))?;
    let line = text.lines().find_map(|l| l.strip_prefix("host: "));
    line.map(str::to_owned).context("rustc -vV names no host")
}

/// One manual page for the program and one for each command, from their own help.
fn write_manuals(binary: &Path, folder: &Path, version: &str) -> Result<()> {
    let help = output(Command::new(binary).arg("--help"))?;
    fs::write(folder.join("onebit.1"), manual("onebit", version, &help))?;
    for command in commands(&help) {
        let help = output(Command::new(binary).args([command, "--help"]))?;
        let name = format!("onebit-{command}");
        fs::write(folder.join(format!("{name}.1")), manual(&name, version, &help))?;
    }
    Ok(())
}

/// The names under `Commands:` of a help text.
fn commands(help: &str) -> Vec<&str> {
    let section = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| l.starts_with("  "));
    section.filter_map(|l| l.split_whitespace().next()).filter(|c| *c != "help").collect()
}

/// Help as a manual page: the text as it is, in one unfilled block.
fn manual(name: &str, version: &str, help: &str) -> String {
    let summary = help.lines().find(|l| !l.trim().is_empty()).unwrap_or_default();
    let mut page = format!(".TH {} 1 \"\" \"onebit {version}\"\n.SH NAME\n", name.to_uppercase());
    page += &format!("{name} \\- {}\n.SH DESCRIPTION\n.nf\n", escape(summary));
    for line in help.lines() {
        page += &escape(line);
        page.push('\n');
    }
    page + ".fi\n"
}

/// A line that roff prints as it stands.
fn escape(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Unpacks the tarball in a root that has no Rust and no Python, and runs it there.
fn run_in_bare_root(root: &Path, tarball: &Path, name: &str) -> Result<()> {
    let bare = target_dir(root).join("bare-root");
    if bare.exists() {
        fs::remove_dir_all(&bare)?;
    }
    fs::create_dir_all(&bare)?;
    let debian = succeeds(Command::new("debootstrap").arg("--version"))
        && run_command(Command::new("debootstrap").arg("--variant=minbase").arg(release_name()).arg(&bare)).is_ok();
    if !debian {
        eprintln!("no Debian root could be made: a root of the binary's own libraries instead");
        let _ = fs::remove_dir_all(&bare);
        copy_libraries(tarball.parent().context("the tarball lies in a folder")?.join(name).join("onebit"), &bare)?;
    }
    run_command(Command::new("tar").arg("-xzf").arg(tarball).arg("-C").arg(&bare))?;
    run_command(Command::new("cp").arg("-r").arg(root.join(CASE)).arg(bare.join("model")))?;
    let inside = |args: &[&str]| {
        let mut command = Command::new("chroot");
        command
            .arg(&bare)
            .arg(format!("/{name}/onebit"))
            .args(args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    };
    let python = bare.join("usr/bin/python3").exists() || bare.join("usr/bin/rustc").exists();
    ensure!(!python, "the bare root is not bare");
    let answer = ["run", "/model", "Hello", "--raw", "--temperature", "0", "--max-tokens", "8"];
    let proc = bare.join("proc");
    fs::create_dir_all(&proc)?;
    run_command(Command::new("mount").args(["-t", "proc", "proc"]).arg(&proc))?;
    let ran = [&["--version"][..], &["info", "/model"], &answer, &["run", "Hello", "--max-tokens", "8"]]
        .iter()
        .try_for_each(|args| run_command(&mut inside(args)));
    run_command(Command::new("umount").arg(&proc))?;
    ran?;
    println!(
        "runs in {}",
        if debian { "a minimal Debian root" } else { "a root that holds its shared libraries only" }
    );
    Ok(())
}

/// The shared libraries that `ldd` lists, at the same paths under another root.
fn copy_libraries(binary: PathBuf, bare: &Path) -> Result<()> {
    let list = output(Command::new("ldd").arg(binary))?;
    for path in list.split_whitespace().filter(|w| w.starts_with('/')) {
        let place = bare.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().context("a library lies in a folder")?)?;
        fs::copy(path, place)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{commands, manual};

    #[test]
    fn commands_of_a_help_text() {
        let help = "About\n\nUsage: onebit <COMMAND>\n\nCommands:\n  run   Answer\n  help  Print\n\nOptions:\n  -h\n";
        assert_eq!(commands(help), ["run"]);
    }

    #[test]
    fn a_manual_keeps_every_character() {
        let page = manual("onebit", "1.0", "Runs\n.dot -x \\ y\n");
        assert!(page.contains("\\&.dot \\-x \\e y"), "{page}");
    }
}

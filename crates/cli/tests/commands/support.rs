//! Running the program, and models to run it on.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What the program did.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) time: Duration,
}

impl Output {
    /// The program worked.
    #[track_caller]
    pub(crate) fn ok(self) -> Output {
        assert_eq!(self.code, 0, "{self:#?}");
        self
    }

    /// The program failed with this code and one sentence on stderr that holds every one of `parts`.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) -> Output {
        assert_eq!(self.code, code, "{self:#?}");
        assert!(self.stdout.is_empty(), "{self:#?}");
        let errors: Vec<&str> = self.stderr.lines().filter(|l| l.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        parts.iter().for_each(|part| assert!(self.stderr.contains(part), "no {part:?} in {self:#?}"));
        self
    }

    /// The program ended with this code, and did not fall over.
    #[track_caller]
    pub(crate) fn code_is(self, code: i32) -> Output {
        assert!(self.code == code && !self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    /// stdout as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in {self:#?}"))
    }
}

/// A call of the program in an environment without the user's settings.
pub(crate) struct Call {
    command: Command,
    stdin: Option<Vec<u8>>,
}

/// `onebit ARGS...`, on the processor even where there is a GPU.
pub(crate) fn onebit<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Call {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
    command.args(args).env_clear().env("ONEBIT_BACKEND", "cpu");
    for kept in ["PATH", "TMPDIR", "SystemRoot", "TEMP", "LLVM_PROFILE_FILE"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    // No cache, and no network even by mistake.
    command.env("HOME", "/nonexistent").env("HF_ENDPOINT", "http://127.0.0.1:9");
    Call { command, stdin: None }
}

impl Call {
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Call {
        self.command.env(name, value);
        self
    }

    /// Runs it in this folder.
    pub(crate) fn dir(mut self, path: impl AsRef<Path>) -> Call {
        self.command.current_dir(path);
        self
    }

    pub(crate) fn stdin(mut self, text: impl Into<Vec<u8>>) -> Call {
        self.stdin = Some(text.into());
        self
    }

    /// Runs it to its end.
    pub(crate) fn run(mut self) -> Output {
        let started = Instant::now();
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command.stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = self.command.spawn().expect("the program starts");
        if let (Some(text), Some(mut pipe)) = (self.stdin, child.stdin.take()) {
            // A program that does not read to the end is its own business.
            let _ = pipe.write_all(&text);
        }
        let output = child.wait_with_output().expect("the program ends");
        let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
        Output {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            time: started.elapsed(),
        }
    }
}

/// A golden case, as it lies in the repository.
pub(crate) fn golden(name: &str) -> PathBuf {
    let path = testdata().join("golden").join(name);
    assert!(path.is_dir(), "{}", path.display());
    path
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

/// The file of a GGUF case.
pub(crate) fn golden_gguf(name: &str) -> PathBuf {
    golden(name).join("model.gguf")
}

/// A copy of a golden case in a folder of its own, which may be changed.
pub(crate) struct Copy {
    pub(crate) dir: TempDir,
    pub(crate) path: PathBuf,
}

impl Copy {
    pub(crate) fn of(case: &str) -> Copy {
        Self::named(case, "model")
    }

    /// In a folder of this name.
    pub(crate) fn named(case: &str, name: &str) -> Copy {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(name);
        std::fs::create_dir(&path).expect("a folder");
        for entry in std::fs::read_dir(golden(case)).expect("the case") {
            let entry = entry.expect("an entry");
            if !entry.file_name().to_string_lossy().starts_with("expected") {
                std::fs::copy(entry.path(), path.join(entry.file_name())).expect("copied");
            }
        }
        Copy { dir, path }
    }

    /// With the repository's own thinking template.
    pub(crate) fn with_template(self) -> Copy {
        std::fs::copy(testdata().join("chat/think_tools.jinja"), self.path.join("chat_template.jinja"))
            .expect("copied");
        self
    }

    /// A file of it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Changes the bytes of a file.
    pub(crate) fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(self.file(name)).expect("the file");
        change(&mut bytes);
        std::fs::write(self.file(name), bytes).expect("written");
    }

    /// Replaces text in a file, where it must be.
    pub(crate) fn replace(&self, name: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.file(name)).expect("the file");
        assert!(text.contains(from), "{from} in {name}");
        std::fs::write(self.file(name), text.replace(from, to)).expect("written");
    }

    /// The path as an argument.
    pub(crate) fn arg(&self) -> &str {
        self.path.to_str().expect("UTF-8")
    }
}

/// A path as an argument.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

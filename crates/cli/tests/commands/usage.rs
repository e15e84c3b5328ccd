//! Arguments: which word is what, what is refused, what is documented.

use crate::support::{Copy, arg, golden, onebit};
use clap::CommandFactory;
use onebit::args::Cli;
use std::path::Path;

#[test]
fn help_and_version() {
    let help = onebit(&["--help"]).run().ok();
    for command in
        ["run", "chat", "models", "info", "doctor", "bench", "pull", "convert", "eval", "logits", "completions"]
    {
        assert!(help.stdout.contains(&format!("\n  {command} ")), "{command} in {}", help.stdout);
        let own = onebit(&[command, "--help"]).run().ok();
        assert!(own.stdout.contains("Example"), "{command} has no example: {}", own.stdout);
        assert!(own.stderr.is_empty());
    }
    assert_eq!(onebit(&["--version"]).run().ok().stdout.trim(), format!("onebit {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bad_usage_is_code_2() {
    for args in [
        &["frobnicate"][..],
        &["run", "--no-such-flag"],
        &["run", "a", "b", "c"],
        &["run", "-m", "x", "a", "--ctx", "0"],
        &["run", "-m", "x", "a", "--think", "maybe"],
        &["run", "-m", "x", "a", "--logit-bias", "5"],
        &["run", "-m", "x", "a", "--raw", "--think", "off"],
        &["run", "-m", "x", "a", "--q2-0-group", "32"],
        &["convert", "x"],
        &["completions", "no-shell"],
        &["doctor", "--bits", "3"],
    ] {
        let output = onebit(args).run();
        assert_eq!(output.code, 2, "{args:?}: {output:?}");
        assert!(output.stdout.is_empty() && output.stderr.starts_with("error:"), "{args:?}: {output:?}");
    }
    // Without a command the help is shown, and nothing was done.
    assert_eq!(onebit::<&str>(&[]).run().code, 2);
}

#[test]
fn a_lone_model_is_never_a_prompt() {
    let case = golden("qwen3_1bit_untied");
    for word in [arg(&case), "some/repository", "bonsai-8b", "nowhere.gguf"] {
        let output = onebit(&["run", word]).run().fails(2, &["is a model, and there is no prompt"]);
        assert!(output.stderr.contains(&format!("onebit run {word} 'PROMPT'")), "{output:?}");
        assert!(output.stderr.contains(&format!("onebit run -m MODEL {word}")), "{output:?}");
    }
}

#[test]
fn no_model_and_no_prompt() {
    onebit(&["chat"]).run().ok();
    onebit(&["run"]).run().fails(2, &["there is no prompt"]);
    onebit(&["run", "-m", "x/y"]).stdin("  \n").run().fails(2, &["there is no prompt"]);
    onebit(&["run", "-m", "x/y", "two", "words"]).run().fails(2, &["quote the prompt"]);
    onebit(&["run", "hello", "world"]).run().fails(2, &["`hello` is no model", "bonsai-8b"]);
}

#[test]
fn models_that_are_not_here() {
    onebit(&["run", "./no/such/folder", "hi"]).run().fails(1, &["./no/such/folder does not exist"]);
    let dir = tempfile::tempdir().expect("a folder");
    let run = |args: &[&str]| onebit(args).env("HF_HOME", dir.path()).run();
    run(&["run", "some/repository", "hi"])
        .fails(1, &["some/repository is not in the cache", "onebit pull some/repository"]);
    run(&["run", "bonsai-8b", "hi"]).fails(1, &["onebit pull prism-ml/Bonsai-8B-mlx-1bit"]);
    run(&["run", "ternary-2-27b", "hi"]).fails(1, &["rotated", "2-bit, groups of 128", "ternary-27b"]);
    run(&["pull", "ternary-2-27b"]).fails(1, &["rotated"]);
    run(&["run", "image-binary-4b", "hi"]).fails(1, &["makes pictures", "onebit image image-binary-4b"]);
    run(&["image", "image-binary-4b", "--prompt", "hi"])
        .fails(1, &["onebit pull prism-ml/bonsai-image-binary-4B-mlx-1bit"]);
    // An image pack is downloaded like any other: here as far as the network, which tests do not have.
    run(&["pull", "image-binary-4b"]).fails(1, &["the file list of prism-ml/bonsai-image-binary-4B-mlx-1bit failed"]);
}

#[test]
fn backends_that_this_build_or_machine_lacks() {
    let case = golden("qwen3_1bit_untied");
    let refused = |backend: &str, part: &str| {
        for command in [&["run", arg(&case), "hi"][..], &["info", arg(&case)], &["doctor"], &["models"]] {
            let args = [command, &["--backend", backend]].concat();
            onebit(&args).run().fails(1, &[part, "--backend cpu"]);
        }
    };
    if onebit_backend_wgpu::adapters().is_empty() {
        refused("wgpu", "no driver of Vulkan, Metal or DX12 was found");
    }
    if !onebit_backend_cuda::driver_is_installed() {
        refused("cuda", "no NVIDIA driver is installed");
        // A machine without a driver is not told so at every command.
        let output = onebit(&["models"]).run().ok();
        assert!(!output.stderr.contains("CUDA"), "{output:?}");
    }
    onebit(&["run", arg(&case), "hi"])
        .env("ONEBIT_CPU", "avx9000")
        .run()
        .fails(1, &["ONEBIT_CPU", "avx9000", "portable"]);
}

#[test]
fn values_outside_their_range() {
    let case = golden("qwen3_1bit_untied");
    let run = |extra: &[&str]| onebit(&[&["run", arg(&case), "hi"][..], extra].concat()).run();
    run(&["--temperature", "-1"]).fails(2, &["temperature", "from 0 to 100"]);
    run(&["--temperature=-1"]).fails(2, &["temperature", "from 0 to 100"]);
    run(&["--top-p", "1.5"]).fails(2, &["top_p"]);
    run(&["--stop", ""]).fails(2, &["stop string"]);
    run(&["--ctx", "40000"]).fails(1, &["40000", "32768"]);
    run(&["--logit-bias", "100000=1"]).fails(1, &["100000", "319"]);
    run(&["--think", "off"]).fails(2, &["no chat template", "--think"]);
    run(&["--system", "x"]).fails(2, &["no chat template", "--system"]);
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = onebit(&["completions", shell]).run().ok().stdout;
        assert!(script.contains("onebit") && script.contains("max-tokens"), "{shell}");
    }
}

#[test]
fn every_flag_and_variable_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tuning.md");
    let text = std::fs::read_to_string(path).expect("docs/tuning.md");
    let mut missing = Vec::new();
    for command in Cli::command().get_subcommands() {
        for argument in command.get_arguments().filter(|a| !a.is_hide_set()) {
            let long = argument.get_long().filter(|l| !["help", "version"].contains(l));
            if let Some(long) = long
                && !text.contains(&format!("--{long}"))
            {
                missing.push(format!("{} --{long}", command.get_name()));
            }
            if let Some(variable) = argument.get_env().and_then(|v| v.to_str())
                && !text.contains(variable)
            {
                missing.push(variable.to_owned());
            }
        }
    }
    for variable in ["ONEBIT_MODEL", "ONEBIT_CPU", "HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"] {
        if !text.contains(variable) {
            missing.push(variable.to_owned());
        }
    }
    assert!(missing.is_empty(), "not in docs/tuning.md: {missing:?}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    use std::process::{Command, Stdio};
    let case = Copy::of("qwen3_1bit_untied");
    let mut child = Command::new(env!("CARGO_BIN_EXE_onebit"))
        .args(["run", case.arg(), "hi", "--max-tokens", "200", "--seed", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !stderr.contains("error"), "{stderr}");
}

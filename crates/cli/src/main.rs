//! The `onebit` command.

fn main() -> std::process::ExitCode {
    onebit::main()
}

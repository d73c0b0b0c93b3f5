//! The `sqlenv` program.

fn main() -> std::process::ExitCode {
    cli::main()
}

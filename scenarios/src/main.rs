//! `rulelag`: what rules that arrive late cost.
//!
//! ```text
//! cli ──► command ──► file      a scenario, checked, as a Config
//!                ──► sweep     runs side by side
//!                ──► output    the folder of results
//! ```

/// Writes a line to standard error. Unlike `eprintln!`, it does not mind that nobody reads it: a
/// panic there would keep an interrupted program running.
macro_rules! complain {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arg)*);
    }};
}

mod cli;
mod closed_form;
mod command;
mod expect;
mod file;
mod library;
mod output;
mod sweep;
mod units;

use std::process::ExitCode;

use clap::Parser as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use command::Status;

fn main() -> ExitCode {
    let cli = cli::Cli::try_parse().unwrap_or_else(|error| explained(error).exit());
    // Without a handler an interruption ends the program all the same, only less tidily.
    let _ = ctrlc::set_handler(|| {
        complain!("\ninterrupted; no result was written");
        output::abandon_and_exit(Status::Limit as i32);
    });
    ExitCode::from(command::execute(cli) as u8)
}

/// Points to `--out` whoever writes `-o` for it, as other programs have it.
fn explained(mut error: clap::Error) -> clap::Error {
    let is_o = |value: &ContextValue| matches!(value, ContextValue::String(arg) if arg == "-o");
    let has_out = matches!(std::env::args().nth(1).as_deref(), Some("run" | "sweep"));
    if error.kind() == ErrorKind::UnknownArgument
        && has_out
        && error.get(ContextKind::InvalidArg).is_some_and(is_o)
    {
        error.remove(ContextKind::Suggested);
        let out = ContextValue::String("--out <DIR>".to_owned());
        error.insert(ContextKind::SuggestedArg, out);
    }
    error
}

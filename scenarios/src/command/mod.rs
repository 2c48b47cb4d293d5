//! The commands.

mod explain;
mod library;
mod matrix;
#[cfg(target_os = "linux")]
mod prove;
mod result;
mod rules;
mod run;
mod sweep;

use std::fmt::Display;
use std::io::{self, Write as _};

use clap::CommandFactory as _;

use crate::cli::{Cli, Command};
use crate::file;
use crate::output::OutputError;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// Done, and every judged expectation held.
    Held = 0,
    /// Some did not, or could not be decided.
    NotHeld = 1,
    /// Bad input.
    BadInput = 2,
    /// A limit was hit, the run was interrupted, or rulelag itself is wrong.
    Limit = 3,
    /// Results could not be written.
    NotWritten = 4,
}

/// Does what the command line says.
pub(crate) fn execute(cli: Cli) -> Status {
    match cli.command {
        Command::Run(args) => run::execute(&args),
        Command::Sweep(args) => sweep::execute(&args),
        Command::Explain(args) => explain::execute(&args),
        Command::Rules(args) => rules::execute(&args),
        Command::Matrix(args) => matrix::execute(&args),
        #[cfg(target_os = "linux")]
        Command::Prove(args) => prove::execute(&args),
        #[cfg(not(target_os = "linux"))]
        Command::Prove(_) => {
            complain!("error: prove needs Linux");
            Status::BadInput
        }
        Command::Scenarios(args) => library::execute(&args),
        Command::Schema => {
            print(format_args!("{:#}\n", file::schema::schema()));
            Status::Held
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "rulelag", &mut script);
            print(String::from_utf8_lossy(&script));
            Status::Held
        }
    }
}

/// Prints a result. Nobody reading it any more, as under `| head`, is no error.
fn print(text: impl Display) {
    let mut out = io::stdout().lock();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}

/// Reports that results could not be written.
fn not_written(error: &OutputError) -> Status {
    complain!("error: {error}");
    if !matches!(error, OutputError::Foreign { .. }) {
        complain!("no result was written; what was there before is unchanged");
    }
    Status::NotWritten
}

/// Reports that a run failed.
fn run_failed(what: &str, error: &sim_core::RunError) -> Status {
    complain!("error: {what}: {error}");
    match error {
        sim_core::RunError::Limit(_) => {
            complain!(
                "help: no result was written; raise `limits:` in the scenario if this much is meant"
            );
            Status::Limit
        }
        sim_core::RunError::Setup(_) => Status::BadInput,
        sim_core::RunError::Rules(_) => {
            complain!(
                "this is a bug in rulelag, not in the scenario: please report it with the scenario \
                 and the seed\nno result was written"
            );
            Status::Limit
        }
    }
}

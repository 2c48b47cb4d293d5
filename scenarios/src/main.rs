//! `rulelag`: what rules that arrive late cost.
//!
//! ```text
//! cli ──► command ──► file      a scenario, checked, as a Config
//!                ──► sweep     runs side by side
//!                ──► output    the folder of results
//! ```

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

use command::Status;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    // Without a handler an interruption ends the program all the same, only less tidily.
    let _ = ctrlc::set_handler(|| {
        eprintln!("\ninterrupted; no result was written");
        output::abandon_and_exit(Status::Limit as i32);
    });
    ExitCode::from(command::execute(cli) as u8)
}

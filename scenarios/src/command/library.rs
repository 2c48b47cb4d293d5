//! `rulelag scenarios`.

use super::{Status, print};
use crate::cli::{Scenarios, ScenariosAction};
use crate::file::Reader;
use crate::{library, units};

/// Lists the built-in scenarios, or shows one.
pub(super) fn execute(args: &Scenarios) -> Status {
    match &args.action {
        None | Some(ScenariosAction::List) => {
            let width = library::names().map(str::len).max().unwrap_or(0);
            for name in library::names() {
                let scenario = Reader::default().scenario(name, &[]);
                let question = scenario.and_then(|scenario| scenario.question);
                print(format_args!("{name:width$}  {}\n", question.unwrap_or_default()));
            }
            // Beside the list, not in it: somebody may read names from it.
            complain!(
                "\n`rulelag scenarios show NAME` prints one, to start a file of your own from"
            );
            Status::Held
        }
        Some(ScenariosAction::Show { name }) => match library::get(name) {
            Some(text) => {
                print(text);
                Status::Held
            }
            None => {
                let names: Vec<&str> = library::names().collect();
                complain!("error: there is no built-in scenario {name:?}");
                match units::closest(name, names.iter().copied()) {
                    Some(close) => complain!("help: did you mean {close}?"),
                    None => complain!("help: there are {}", names.join(", ")),
                }
                Status::BadInput
            }
        },
    }
}

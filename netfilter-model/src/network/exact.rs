//! Every way of what is done in a network.

use super::{Dice, Network};
use crate::exact::{Exploration, Limits, Script, explore};
use crate::host::{Draws, Note};
use crate::rule::{Probability, RuleRef};
use crate::traverse::Lookup;

impl Network {
    /// Follows every way of `run`, each on a copy of this network, in which all hosts' random
    /// rules choose as [`explore`] says.
    ///
    /// Ports that are chosen at random come from the hosts' own dice and make no ways of their
    /// own. No steps are kept: what is seen is what [`Network::take_sights`] and the sockets tell.
    pub fn explore<O>(
        &self,
        limits: Limits,
        mut run: impl FnMut(&mut Network) -> O,
    ) -> Exploration<O> {
        explore(limits, |script| {
            let mut network = self.clone();
            for node in &mut network.nodes {
                node.netns.set_lookup(Lookup::RuleByRule);
            }
            network.script = Some(std::mem::take(script));
            let outcome = run(&mut network);
            *script = network.script.take().unwrap_or_default();
            outcome
        })
    }
}

/// Who decides what is left to chance on a host: its dice, or a script for the whole network.
pub(super) struct Decider<'d> {
    pub(super) dice: &'d mut Dice,
    pub(super) script: Option<&'d mut Script>,
}

impl Draws for Decider<'_> {
    fn draw(&mut self, ordinal: u32) -> u64 {
        self.dice.draw(ordinal)
    }

    fn chance(&mut self, ordinal: u32, probability: Probability) -> bool {
        match &mut self.script {
            Some(script) => script.chance(ordinal, probability),
            None => self.dice.chance(ordinal, probability),
        }
    }

    fn below(&mut self, ordinal: u32, modulus: u32) -> u32 {
        match &mut self.script {
            Some(script) => script.below(ordinal, modulus),
            None => self.dice.below(ordinal, modulus),
        }
    }

    fn unsupported(&mut self, rule: RuleRef) -> bool {
        self.script.as_mut().is_some_and(|script| script.unsupported(rule))
    }

    fn note(&mut self, note: Note<'_>) {
        self.dice.note(note);
    }
}

//! One command of iptables: what it does, and the rule behind it.

mod rules;

use std::borrow::Cow;

use super::Counters;
use super::matches;
use super::options::{
    self, Extension, Given, Instance, MATCHES, Spec, TARGETS, UNMODELLED_MATCHES,
};
use super::words::Word;
use crate::prefix::Prefix;
use crate::rule::{DeviceMatch, Origin, Rule, Target};
use crate::tuple::{Family, Protocol};

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Append,
    /// Before the rule of this number.
    Insert(u32),
    /// The rule of this number, or one like it.
    Delete(Option<u32>),
    Replace(u32),
    NewChain,
    DeleteChain,
    Flush,
    Policy,
    Rename,
    /// Nothing that matters here, such as `-Z` and `-L`.
    Nothing,
}

/// A command as read.
#[derive(Debug)]
pub(super) struct Command<'t> {
    pub(super) action: Option<Action>,
    /// The chain; empty for all.
    pub(super) chain: Cow<'t, str>,
    /// The policy of `-P`, or the new name of `-E`.
    pub(super) argument: Cow<'t, str>,
    /// `-t`.
    pub(super) table: Option<Cow<'t, str>>,
    /// `-4` or `-6`.
    pub(super) only: Option<Family>,
    /// The rules: several, if addresses are listed.
    pub(super) rules: Vec<Draft>,
    /// What is wrong, each with what can be done.
    pub(super) problems: Vec<Trouble>,
}

/// What is wrong with a line, and what can be done.
pub(super) type Trouble = (String, Option<&'static str>);

/// A rule of which it is not known yet which chains exist.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Draft {
    /// Its conditions.
    pub(super) rule: Rule,
    /// What it does.
    pub(super) target: DraftTarget,
    /// How often it matched.
    pub(super) counters: Option<Counters>,
}

/// What a rule does, before names are looked up.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DraftTarget {
    /// A target, or nothing.
    Known(Target),
    /// What follows `-j`: a chain of this name, if there is one, else this target.
    Named(String, Option<Target>),
    /// The chain behind `-g`.
    Goto(String),
}

/// Options of iptables itself: how they are written, the letter, how many words follow.
const GLOBALS: [(&str, char, u8); 30] = [
    ("append", 'A', 1),
    ("delete", 'D', 1),
    ("check", 'C', 1),
    ("insert", 'I', 1),
    ("replace", 'R', 1),
    ("list", 'L', 0),
    ("list-rules", 'S', 0),
    ("flush", 'F', 0),
    ("zero", 'Z', 0),
    ("new-chain", 'N', 1),
    ("delete-chain", 'X', 0),
    ("rename-chain", 'E', 2),
    ("policy", 'P', 2),
    ("source", 's', 1),
    ("src", 's', 1),
    ("destination", 'd', 1),
    ("dst", 'd', 1),
    ("protocol", 'p', 1),
    ("proto", 'p', 1),
    ("in-interface", 'i', 1),
    ("out-interface", 'o', 1),
    ("jump", 'j', 1),
    ("goto", 'g', 1),
    ("match", 'm', 1),
    ("table", 't', 1),
    ("fragments", 'f', 0),
    ("ipv4", '4', 0),
    ("ipv6", '6', 0),
    ("set-counters", 'c', 2),
    ("wait", 'w', 0),
];

/// How many matches a rule may have; iptables has no limit, but each option is looked up in all.
const MATCHES_MAX: usize = 200;

/// Where an option belongs.
enum Place {
    Global(char, u8),
    Match(usize, &'static Spec),
    Target(&'static Spec),
    Implied(&'static Extension, &'static Spec),
}

struct Parser<'w, 't> {
    words: &'w [Word<'t>],
    at: usize,
    family: Family,
    command: Command<'t>,
    counters: Option<Counters>,
    sources: Vec<(Prefix, bool)>,
    destinations: Vec<(Prefix, bool)>,
    input: Option<DeviceMatch>,
    output: Option<DeviceMatch>,
    protocol: Option<(Protocol, bool)>,
    fragment: Option<bool>,
    matches: Vec<Instance<'t>>,
    target: Option<Instance<'t>>,
    goto: Option<Cow<'t, str>>,
    /// What belongs nowhere, as written.
    loose: Vec<String>,
}

/// Reads a command; rules get the origin. Lists of addresses that would make more rules than
/// `work_left` lets are passed over.
pub(super) fn parse<'t>(
    words: &[Word<'t>],
    family: Family,
    origin: Origin,
    work_left: usize,
) -> Command<'t> {
    let command = Command {
        action: None,
        chain: Cow::Borrowed(""),
        argument: Cow::Borrowed(""),
        table: None,
        only: None,
        rules: Vec::new(),
        problems: Vec::new(),
    };
    let mut parser = Parser {
        words,
        at: 0,
        family,
        command,
        counters: None,
        sources: Vec::new(),
        destinations: Vec::new(),
        input: None,
        output: None,
        protocol: None,
        fragment: None,
        matches: Vec::new(),
        target: None,
        goto: None,
        loose: Vec::new(),
    };
    parser.run();
    parser.finish(origin, work_left)
}

impl<'w, 't> Parser<'w, 't> {
    fn run(&mut self) {
        let mut start = 0;
        let mut not = false;
        while let Some(word) = self.words.get(self.at) {
            self.at += 1;
            if word.is_not() {
                not = !not;
                continue;
            }
            let text = word.text.clone();
            if let Some(long) = text.strip_prefix("--")
                && !long.is_empty()
            {
                self.long(long, not, start);
            } else if text.starts_with('-') && text.len() > 1 {
                self.short(&text, not, start);
            } else {
                self.stray(start, format!("{text:?} is an argument of nothing"));
            }
            (start, not) = (self.at, false);
        }
        if not {
            self.stray(start, "a ! at the end".to_owned());
        }
    }

    fn trouble(&mut self, problem: impl Into<String>) {
        self.command.problems.push((problem.into(), None));
    }

    /// Keeps the words from `start` on as something that belongs nowhere.
    fn stray(&mut self, start: usize, problem: String) {
        let raw: Vec<&str> = self.words[start..self.at].iter().map(|word| word.raw).collect();
        self.loose.push(raw.join(" "));
        self.trouble(problem);
    }

    fn long(&mut self, text: &str, not: bool, start: usize) {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        match self.place(name) {
            Some(Place::Global(letter, args)) => {
                let (not, values) = self.values(args, not, value);
                self.global(letter, not, values, start);
            }
            Some(Place::Match(index, spec)) => {
                let (given, raw) = self.given(spec, not, value, start);
                let instance = &mut self.matches[index];
                instance.given.push(given);
                instance.keep(raw);
            }
            Some(Place::Target(spec)) => {
                let (given, raw) = self.given(spec, not, value, start);
                if let Some(target) = &mut self.target {
                    target.given.push(given);
                    target.keep(raw);
                }
            }
            Some(Place::Implied(extension, spec)) => {
                let (given, raw) = self.given(spec, not, value, start);
                let mut instance = Instance::new(extension.name.into(), Some(extension));
                instance.given.push(given);
                instance.keep(raw);
                self.matches.push(instance);
            }
            None => self.unknown(name, start),
        }
    }

    /// Finds out where an option belongs: what was named last comes first, and what is written in
    /// full before what is only the beginning.
    fn place(&self, name: &str) -> Option<Place> {
        let implied = self.implied();
        let named = |find: &dyn Fn(&'static Extension) -> Option<&'static Spec>| {
            let target = self.target.as_ref().and_then(|target| target.extension);
            if let Some(spec) = target.and_then(find) {
                return Some(Place::Target(spec));
            }
            self.matches.iter().enumerate().rev().find_map(|(index, instance)| {
                instance.extension.and_then(find).map(|spec| Place::Match(index, spec))
            })
        };
        let global = GLOBALS.iter().find(|(option, ..)| *option == name);
        if let Some((_, letter, args)) = global {
            return Some(Place::Global(*letter, *args));
        }
        let from_implied = |find: &dyn Fn(&'static Extension) -> Option<&'static Spec>| {
            implied.and_then(|of| find(of).map(|spec| Place::Implied(of, spec)))
        };
        if let Some(place) =
            named(&|of| of.exact(name)).or_else(|| from_implied(&|of| of.exact(name)))
        {
            return Some(place);
        }
        let open = self.target.iter().chain(&self.matches).any(|of| of.extension.is_none());
        if open {
            // It may well be an option of something that is not known here.
            return None;
        }
        named(&|of| of.beginning(name)).or_else(|| from_implied(&|of| of.beginning(name))).or_else(
            || {
                let mut found = GLOBALS.iter().filter(|(option, ..)| option.starts_with(name));
                let (_, letter, args) = found.next()?;
                found.all(|(_, other, _)| other == letter).then_some(Place::Global(*letter, *args))
            },
        )
    }

    /// Returns the match that a protocol brings with it, if it is not there yet.
    fn implied(&self) -> Option<&'static Extension> {
        let (protocol, false) = self.protocol? else {
            return None;
        };
        let name = match protocol {
            Protocol::TCP => "tcp",
            Protocol::UDP => "udp",
            Protocol::SCTP => "sctp",
            Protocol::ICMP => "icmp",
            Protocol::ICMPV6 => "icmp6",
            _ => return None,
        };
        let there = self.matches.iter().any(|instance| instance.name == name);
        if there { None } else { options::find(MATCHES, name) }
    }

    /// Takes the words behind an option. An old spelling has the `!` there.
    fn values(
        &mut self,
        args: u8,
        mut not: bool,
        first: Option<String>,
    ) -> (bool, Option<[Cow<'t, str>; 2]>) {
        let mut values = [Cow::Borrowed(""), Cow::Borrowed("")];
        for (place, value) in values.iter_mut().take(args.into()).enumerate() {
            if place == 0
                && let Some(first) = &first
            {
                *value = Cow::Owned(first.clone());
                continue;
            }
            if place == 0 && !not && self.words.get(self.at).is_some_and(Word::is_not) {
                self.at += 1;
                not = true;
                let help = "iptables 1.8 wants the ! before the option";
                self.command.problems.push(("an old spelling of !".to_owned(), Some(help)));
            }
            match self.words.get(self.at) {
                Some(word) => *value = word.text.clone(),
                None => return (not, None),
            }
            self.at += 1;
        }
        (not, Some(values))
    }

    fn given(
        &mut self,
        (name, key, args): &'static Spec,
        not: bool,
        value: Option<String>,
        start: usize,
    ) -> (Given<'t>, &'w [Word<'t>]) {
        let (invert, values) = self.values(*args, not, value);
        if values.is_none() {
            self.trouble(format!("--{name} needs a value"));
        }
        // An option that lacks its value cannot be used, and says so when the match is made.
        let key = if values.is_some() { key } else { "" };
        let given = Given { key, invert, values: values.unwrap_or_default() };
        let words = self.words;
        (given, &words[start..self.at])
    }

    /// Keeps an option that is not known here, with the words that seem to belong to it.
    fn unknown(&mut self, name: &str, start: usize) {
        while let Some(word) = self.words.get(self.at)
            && !word.is_not()
            && !word.raw.starts_with('-')
        {
            self.at += 1;
        }
        let open = |of: &&mut Instance<'t>| of.extension.is_none();
        let owner = self.matches.iter_mut().rev().find(open);
        let owner = self.target.as_mut().filter(|of| of.extension.is_none()).or(owner);
        let words = &self.words[start..self.at];
        if let Some(owner) = owner {
            owner.keep(words);
            return;
        }
        // Some protocols have a match of their own that is not modelled.
        let of_protocol = match self.protocol {
            Some((protocol, false)) => protocol.name(),
            _ => None,
        };
        match of_protocol.filter(|name| UNMODELLED_MATCHES.contains(name)) {
            Some(of_protocol) => {
                let mut instance = Instance::new(of_protocol.into(), None);
                instance.keep(words);
                self.matches.push(instance);
            }
            None => self.stray(start, format!("option --{name} is not known here")),
        }
    }

    fn short(&mut self, text: &str, not: bool, start: usize) {
        let mut chars = text.chars();
        chars.next();
        let Some(letter) = chars.next() else { return };
        let attached = chars.as_str();
        let args_of = |letter| match GLOBALS.iter().find(|(_, known, _)| *known == letter) {
            Some((.., args)) => Some(*args),
            None => ['n', 'v', 'x', 'b', 'W'].contains(&letter).then_some(0),
        };
        let Some(args) = args_of(letter) else {
            return self.stray(start, format!("option {text} is not known"));
        };
        if args == 0 && !attached.is_empty() {
            // Flags in one word, such as `-nvL`. One that is not known spoils the word: it is kept
            // once, not once for each letter.
            if !attached.chars().all(|letter| args_of(letter) == Some(0)) {
                return self.stray(start, format!("option {text} is not known"));
            }
            for letter in text.chars().skip(1) {
                self.global(letter, not, Some(Default::default()), start);
            }
            return;
        }
        let first = (!attached.is_empty()).then(|| attached.to_owned());
        let (not, values) = self.values(args, not, first);
        self.global(letter, not, values, start);
    }

    fn act(&mut self, action: Action, chain: Cow<'t, str>) {
        if self.command.action.is_some_and(|known| known != Action::Nothing) {
            self.trouble("a second command in one line");
            return;
        }
        self.command.action = Some(action);
        self.command.chain = chain;
    }

    /// Takes a word that need not be there, if the next one is no option.
    fn optional(&mut self) -> Option<Cow<'t, str>> {
        let word = self.words.get(self.at)?;
        if word.is_not() || word.raw.starts_with('-') {
            return None;
        }
        self.at += 1;
        Some(word.text.clone())
    }

    fn optional_number(&mut self) -> Option<u32> {
        let number = self.words.get(self.at)?.text.parse().ok()?;
        self.at += 1;
        Some(number)
    }

    fn global(&mut self, letter: char, not: bool, values: Option<[Cow<'t, str>; 2]>, start: usize) {
        let Some([value, second]) = values else {
            return self.stray(start, format!("-{letter} needs a value"));
        };
        match letter {
            'A' => self.act(Action::Append, value),
            'I' => {
                let number = self.optional_number().unwrap_or(1);
                self.act(Action::Insert(number), value);
            }
            'D' => {
                let number = self.optional_number();
                self.act(Action::Delete(number), value);
            }
            'R' => match self.optional_number() {
                Some(number) => self.act(Action::Replace(number), value),
                None => self.trouble("-R needs a number"),
            },
            'N' => self.act(Action::NewChain, value),
            'E' => {
                self.act(Action::Rename, value);
                self.command.argument = second;
            }
            'P' => {
                self.act(Action::Policy, value);
                self.command.argument = second;
            }
            'X' | 'F' | 'Z' | 'L' | 'S' => {
                let chain = self.optional().unwrap_or_default();
                let action = match letter {
                    'X' => Action::DeleteChain,
                    'F' => Action::Flush,
                    _ => Action::Nothing,
                };
                self.optional_number();
                self.act(action, chain);
            }
            'C' => self.act(Action::Nothing, value),
            't' => self.command.table = Some(value),
            '4' => self.command.only = Some(Family::V4),
            '6' => self.command.only = Some(Family::V6),
            'c' => match (value.parse(), second.parse()) {
                (Ok(packets), Ok(bytes)) => self.counters = Some(Counters { packets, bytes }),
                _ => self.trouble("-c needs two numbers"),
            },
            'w' | 'W' => {
                self.optional_number();
            }
            'n' | 'v' | 'x' | 'b' => {}
            'm' if self.matches.len() >= MATCHES_MAX => {
                self.stray(start, format!("more than {MATCHES_MAX} matches"));
            }
            'm' => self.begin_match(value),
            'j' => self.begin_target(value, start),
            'g' => self.goto = Some(value),
            _ => self.header(letter, not, &value, start),
        }
    }

    fn begin_match(&mut self, name: Cow<'t, str>) {
        let name = if name == "icmpv6" { Cow::Borrowed("icmp6") } else { name };
        let extension = options::find(MATCHES, &name);
        self.matches.push(Instance::new(name, extension));
    }

    fn begin_target(&mut self, name: Cow<'t, str>, start: usize) {
        if self.target.is_some() {
            return self.stray(start, "a second -j".to_owned());
        }
        let extension = options::find(TARGETS, &name);
        self.target = Some(Instance::new(name, extension));
    }

    fn header(&mut self, letter: char, not: bool, value: &str, start: usize) {
        let result = match letter {
            's' | 'd' => self.addresses(letter, not, value),
            'i' | 'o' => match matches::device(value, not) {
                Ok(None) if not => Err("it would never match".to_owned()),
                Ok(device) => {
                    *(if letter == 'i' { &mut self.input } else { &mut self.output }) = device;
                    Ok(())
                }
                Err(problem) => Err(problem),
            },
            'p' => match Protocol::parse(value) {
                Some(protocol) => {
                    self.protocol = (protocol.0 != 0 || not).then_some((protocol, not));
                    Ok(())
                }
                None => Err(format!("{value:?} is no protocol")),
            },
            'f' => {
                self.fragment = Some(not);
                Ok(())
            }
            letter => Err(format!("option -{letter} is not known")),
        };
        if let Err(problem) = result {
            self.stray(start, problem);
        }
    }
}

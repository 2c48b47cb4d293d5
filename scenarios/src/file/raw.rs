//! What was written, against the tables of [`super::fields`]: unknown fields are refused, types
//! and units are checked, defaults are filled in.

use Absent::{Default, Required};

use super::diagnostic::{Diagnostic, Diagnostics, FileId, Span};
use super::fields::{EXPECTATION, LAW};
use super::tree::{Entry, Node, Value, parse};
use crate::units;

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Text.
    Text,
    /// `true` or `false`.
    Bool,
    /// A whole number within bounds.
    Int(i64, i64),
    /// A number within bounds.
    Number(f64, f64),
    /// A duration: `300ms`.
    Duration,
    /// A rate: `1000/s`.
    Rate,
    /// An IPv4 range.
    Cidr,
    /// A port's number or name.
    Port,
    /// One of these words.
    Word(&'static [&'static str]),
    /// An expectation: an expression, or a mapping that holds one.
    Expectation,
    /// Anything: a Kubernetes object, a value of a grid.
    Any(&'static str),
    /// A list.
    List(&'static Kind),
    /// A mapping with free keys; the word says what a key is.
    Map(&'static str, &'static Kind),
    /// A mapping with these fields.
    Table(&'static Table),
}

/// A mapping with known fields.
#[derive(Debug)]
pub(crate) struct Table {
    /// What it is called in messages.
    pub(crate) name: &'static str,
    /// Its fields.
    pub(crate) fields: &'static [Field],
    /// Fields of which exactly one is given.
    pub(crate) one_of: &'static [Field],
}

/// A field of a [`Table`].
#[derive(Debug)]
pub(crate) struct Field {
    /// Its key.
    pub(crate) name: &'static str,
    /// What it may be.
    pub(crate) kind: Kind,
    /// What happens if it is left out.
    pub(crate) absent: Absent,
    /// One sentence about it.
    pub(crate) doc: &'static str,
}

/// What happens if a field is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It is an error.
    Required,
    /// Nothing is assumed.
    Optional,
    /// It is as if this YAML had been written.
    Default(&'static str),
}

impl Table {
    /// Returns all fields.
    pub(crate) fn all_fields(&self) -> impl Iterator<Item = &'static Field> + use<> {
        self.fields.iter().chain(self.one_of)
    }

    fn with_article(&self) -> String {
        let article = if self.name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        // "uniform" starts with a consonant to the ear.
        let article = if self.name.starts_with("uni") { "a" } else { article };
        format!("{article} {}", self.name)
    }

    fn field(&self, name: &str) -> Option<&'static Field> {
        self.all_fields().find(|field| field.name == name)
    }
}

/// Checks a value against what it may be and fills in what was left out.
///
/// Returns a value of that kind, or nothing if no such value can be made of it; then
/// `diagnostics` has an error. Parts that are wrong are replaced by their defaults or left out, so
/// that the checks that follow can look at everything else.
pub(crate) fn check(node: &Node, kind: Kind, diagnostics: &mut Diagnostics) -> Option<Node> {
    let mut refuse = |expected: &str, help: String| {
        let message = format!("expected {expected}, found {}", node.describe());
        diagnostics.push(Diagnostic::error("wrong-type", node.span, message).help(help));
        None
    };
    match (kind, &node.value) {
        (Kind::Any(_), _)
        | (Kind::Text, Value::Text(_))
        | (Kind::Bool, Value::Bool(_))
        | (Kind::Expectation, Value::Text(_)) => Some(node.clone()),
        // A name like `1` is a name.
        (Kind::Text, Value::Int(number)) => Some(text(number.to_string(), node.span)),
        (Kind::Text, Value::Bool(value)) => Some(text(value.to_string(), node.span)),
        (Kind::Text, _) => refuse("text", "quote it if it is meant as text".to_owned()),
        (Kind::Bool, _) => refuse("`true` or `false`", "write `true` or `false`".to_owned()),
        (Kind::Port, Value::Text(_)) => Some(node.clone()),
        (Kind::Port, Value::Int(1..=65535)) => Some(node.clone()),
        (Kind::Port, _) => refuse("a port's number or name", "ports are 1 to 65535".to_owned()),
        (Kind::Int(min, max), Value::Int(number)) if (min..=max).contains(number) => {
            Some(node.clone())
        }
        (Kind::Int(min, max), Value::Int(number)) => {
            let code = "out-of-range";
            let message = format!("{number} is out of range");
            let help = int_help(min, max);
            diagnostics.push(Diagnostic::error(code, node.span, message).help(help));
            None
        }
        (Kind::Int(min, max), _) => refuse("a whole number", int_help(min, max)),
        (Kind::Number(min, max), _) => match node.number() {
            Some(number) if (min..=max).contains(&number) => Some(node.clone()),
            Some(number) => {
                let message = format!("{number} is out of range");
                let help = format!("a number from {min} to {max}");
                diagnostics.push(Diagnostic::error("out-of-range", node.span, message).help(help));
                None
            }
            None => refuse("a number", format!("a number from {min} to {max}")),
        },
        (Kind::Duration | Kind::Rate | Kind::Cidr, _) => check_unit(node, kind, diagnostics),
        (Kind::Word(words), _) => check_word(node, words, diagnostics),
        (Kind::Expectation, Value::Map(_)) => check_table(node, &EXPECTATION, diagnostics),
        (Kind::Expectation, _) => {
            refuse("an expectation", "write an expression such as `lost == 0`".to_owned())
        }
        (Kind::List(item), Value::List(items)) => {
            let items = items.iter().filter_map(|node| check(node, *item, diagnostics));
            Some(Node { value: Value::List(items.collect()), span: node.span })
        }
        (Kind::List(_), _) => refuse("a list", "write `[a, b]`, or one `- a` a line".to_owned()),
        (Kind::Map(_, value), Value::Map(entries)) => {
            let entries = entries.iter().filter_map(|entry| {
                check(&entry.value, *value, diagnostics)
                    .map(|value| Entry { value, ..entry.clone() })
            });
            Some(Node { value: Value::Map(entries.collect()), span: node.span })
        }
        (Kind::Map(key, _), _) => refuse("a mapping", format!("each key is a {key}")),
        (Kind::Table(table), _) => check_table(node, table, diagnostics),
    }
}

fn text(text: String, span: Span) -> Node {
    Node { value: Value::Text(text), span }
}

fn int_help(min: i64, max: i64) -> String {
    match max {
        i64::MAX => format!("a whole number of at least {min}"),
        _ => format!("a whole number from {min} to {max}"),
    }
}

fn check_unit(node: &Node, kind: Kind, diagnostics: &mut Diagnostics) -> Option<Node> {
    let (what, help) = match kind {
        Kind::Duration => ("a duration", "durations are written `300ms`, `1.5s` or `1m30s`"),
        Kind::Rate => ("a rate", "rates are written `1000/s`, `60/m` or `0.5/h`"),
        _ => ("an IPv4 range", "ranges are written `10.244.0.0/16`"),
    };
    let Some(written) = node.text() else {
        if matches!(kind, Kind::Duration) && node.int() == Some(0) {
            return Some(text("0s".to_owned(), node.span));
        }
        let message = format!("expected {what}, found {}", node.describe());
        let help = match (&kind, node.number()) {
            (Kind::Duration, Some(n)) => format!("add a unit: `{n}s` or `{n}ms`"),
            (Kind::Rate, Some(n)) => format!("add a unit of time: `{n}/s`"),
            _ => help.to_owned(),
        };
        diagnostics.push(Diagnostic::error("wrong-type", node.span, message).help(help));
        return None;
    };
    let problem = match kind {
        Kind::Duration => units::parse_duration(written).err(),
        Kind::Rate => units::parse_rate(written).err(),
        _ => units::parse_cidr(written).err(),
    };
    match problem {
        None => Some(node.clone()),
        Some(problem) => {
            let message = format!("{written:?} is not {what}: {problem}");
            diagnostics.push(Diagnostic::error("wrong-type", node.span, message).help(help));
            None
        }
    }
}

fn check_word(node: &Node, words: &[&'static str], diagnostics: &mut Diagnostics) -> Option<Node> {
    if node.text().is_some_and(|text| words.contains(&text)) {
        return Some(node.clone());
    }
    let choice = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let message = format!("{} is none of the known words", node.describe());
    let close = node.text().and_then(|text| units::closest(text, words.iter().copied()));
    let help = match close {
        Some(word) if words.len() > 1 => format!("did you mean `{word}`? Known are {choice}"),
        _ if words.len() == 1 => format!("only {choice} is known so far"),
        _ => format!("known are {choice}"),
    };
    diagnostics.push(Diagnostic::error("unknown-word", node.span, message).help(help));
    None
}

fn check_table(node: &Node, table: &'static Table, diagnostics: &mut Diagnostics) -> Option<Node> {
    let entries = match &node.value {
        Value::Map(entries) => entries.as_slice(),
        // `clients:` with nothing behind it: as if empty, as Kubernetes reads it.
        Value::Null => &[],
        _ => {
            let message = format!("expected {}, found {}", table.with_article(), node.describe());
            let help = match table.all_fields().next() {
                _ if std::ptr::eq(table, &raw const LAW) => {
                    "write which law, as in `{ constant: 1s }` or `{ exponential: { mean: 1s } }`"
                        .to_owned()
                }
                Some(first) => {
                    let table = table.with_article();
                    format!("{table} is a mapping, as in `{}: …`", first.name)
                }
                None => String::new(),
            };
            diagnostics.push(Diagnostic::error("wrong-type", node.span, message).help(help));
            return None;
        }
    };
    let mut usable = true;
    let mut filled = Vec::new();
    for entry in entries {
        let Some(field) = table.field(&entry.key) else {
            diagnostics.push(unknown_field(entry, table));
            continue;
        };
        let empty = entry.value.value == Value::Null && !matches!(field.kind, Kind::Any(_));
        let value = if empty && field.absent != Required {
            None // written without a value: left out
        } else {
            let value = check(&entry.value, field.kind, diagnostics);
            usable &= value.is_some() || matches!(field.absent, Default(_));
            value
        };
        filled.extend(value.map(|value| Entry { value, ..entry.clone() }));
    }
    for field in table.fields {
        let written = entries.iter().any(|entry| entry.key == field.name);
        match field.absent {
            Required if !written => {
                usable = false;
                let message = format!("this {} has no `{}`", table.name, field.name);
                diagnostics.push(
                    Diagnostic::error("missing-field", node.span, message)
                        .help(format!("add `{}:`. {}", field.name, field.doc)),
                );
            }
            Default(default) if !filled.iter().any(|entry| entry.key == field.name) => {
                if let Some(value) = default_value(default, field.kind, node.span) {
                    filled.push(Entry { key: field.name.to_owned(), key_span: node.span, value });
                }
            }
            _ => {}
        }
    }
    usable &= check_one_of(node, entries, table, diagnostics);
    usable.then_some(Node { value: Value::Map(filled), span: node.span })
}

fn unknown_field(entry: &Entry, table: &'static Table) -> Diagnostic {
    let names: Vec<&str> = table.all_fields().map(|field| field.name).collect();
    let message = format!("unknown field `{}` in this {}", entry.key, table.name);
    let help = match units::closest(&entry.key, names.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("{} has: {}", table.with_article(), names.join(", ")),
    };
    Diagnostic::error("unknown-field", entry.key_span, message).help(help)
}

fn check_one_of(
    node: &Node,
    entries: &[Entry],
    table: &'static Table,
    diagnostics: &mut Diagnostics,
) -> bool {
    if table.one_of.is_empty() {
        return true;
    }
    let is_choice = |entry: &&Entry| table.one_of.iter().any(|field| field.name == entry.key);
    let given: Vec<&Entry> = entries.iter().filter(is_choice).collect();
    let names: Vec<&str> = table.one_of.iter().map(|field| field.name).collect();
    match given[..] {
        [_] => true,
        [] => {
            let misspelt = entries.iter().any(|entry| {
                table.field(&entry.key).is_none()
                    && units::closest(&entry.key, names.iter().copied()).is_some()
            });
            if !misspelt {
                let message = format!("this {} does not say which kind it is", table.name);
                let help = format!("add one of {}", names.join(", "));
                diagnostics.push(Diagnostic::error("missing-field", node.span, message).help(help));
            }
            false
        }
        [first, second, ..] => {
            let message = format!("both `{}` and `{}` are given", first.key, second.key);
            diagnostics.push(
                Diagnostic::error("conflicting-fields", second.key_span, message)
                    .context(first.key_span, "given here, too")
                    .help(format!(
                        "{} has exactly one of {}",
                        table.with_article(),
                        names.join(", ")
                    )),
            );
            false
        }
    }
}

/// Returns a default as if it had been written at `span`. Defaults are constants, and a test
/// reads all of them.
fn default_value(default: &'static str, kind: Kind, span: Span) -> Option<Node> {
    let mut diagnostics = Diagnostics::default();
    let documents = parse(default, FileId::FIRST, &mut diagnostics);
    let node = documents.first()?.at(span);
    check(&node, kind, &mut diagnostics)
}

#[cfg(test)]
mod tests {
    use super::super::fields::SCENARIO;
    use super::*;

    fn each_table(table: &'static Table, seen: &mut Vec<&'static str>) {
        if seen.contains(&table.name) {
            return;
        }
        seen.push(table.name);
        for field in table.all_fields() {
            assert!(field.doc.ends_with('.'), "{}.{}", table.name, field.name);
            if let Absent::Default(default) = field.absent {
                let span = Span::new(FileId::FIRST, 0, 0);
                let value = default_value(default, field.kind, span);
                assert!(value.is_some(), "{}.{}: {default}", table.name, field.name);
            }
            let mut kind = field.kind;
            while let Kind::List(inner) | Kind::Map(_, inner) = kind {
                kind = *inner;
            }
            if let Kind::Table(inner) = kind {
                each_table(inner, seen);
            }
        }
    }

    #[test]
    fn every_default_is_valid_and_every_field_documented() {
        let mut seen = Vec::new();
        each_table(&SCENARIO, &mut seen);
        assert!(seen.len() > 15, "{seen:?}");
    }
}

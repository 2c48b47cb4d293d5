//! YAML text to a tree that remembers where everything was written.
//!
//! Scalars are read by the YAML 1.2 core schema. Anchors and aliases are expanded; keys are text;
//! duplicate keys are errors. The tree is bounded in depth and size, so that no file can exhaust
//! the stack or the memory.

use std::cmp::Ordering;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};

use super::diagnostic::{Diagnostic, Diagnostics, FileId, Span};

/// Deepest nesting that is read.
const MAX_DEPTH: usize = 64;
/// Most nodes of one file, aliases expanded.
const MAX_NODES: usize = 1_000_000;

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    /// The value.
    pub(crate) value: Value,
    /// The place of its text.
    pub(crate) span: Span,
}

/// What YAML can say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number; finite.
    Float(f64),
    /// Text.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order written.
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The key.
    pub(crate) key: String,
    /// Where the key was written.
    pub(crate) key_span: Span,
    /// The value.
    pub(crate) value: Node,
}

impl Node {
    /// Returns the value under `key`, if this is a mapping that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// Returns the entry of `key`, if this is a mapping that has it.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// Returns the entries of a mapping; nothing of anything else.
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the items of a list; nothing of anything else.
    pub(crate) fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the text of a text.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the number of a whole number.
    pub(crate) fn int(&self) -> Option<i64> {
        match self.value {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the number of a number.
    pub(crate) fn number(&self) -> Option<f64> {
        match self.value {
            Value::Int(number) => Some(number as f64),
            Value::Float(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the value of a boolean.
    pub(crate) fn bool(&self) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// Returns what this is, for messages: `a list`, `the text "80"`.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("`{value}`"),
            Value::Int(number) => format!("the number `{number}`"),
            Value::Float(number) => format!("the number `{number}`"),
            Value::Text(text) if text.chars().count() > 40 => "a text".to_owned(),
            Value::Text(text) => format!("the text {text:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }

    /// Returns the value as JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Int(number) => (*number).into(),
            Value::Float(number) => (*number).into(),
            Value::Text(text) => text.clone().into(),
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.value.to_json()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }

    /// Returns the same value, as if all of it had been written at `span`.
    pub(crate) fn at(&self, span: Span) -> Node {
        let value = match &self.value {
            Value::List(items) => Value::List(items.iter().map(|item| item.at(span)).collect()),
            Value::Map(entries) => Value::Map(
                entries
                    .iter()
                    .map(|entry| Entry {
                        key: entry.key.clone(),
                        key_span: span,
                        value: entry.value.at(span),
                    })
                    .collect(),
            ),
            scalar => scalar.clone(),
        };
        Node { value, span }
    }

    /// Returns how many nodes there are, and how deep they nest.
    fn extent(&self) -> (usize, usize) {
        let children = self.items().iter().chain(self.entries().iter().map(|e| &e.value));
        let (size, depth) = children.fold((0, 0), |(size, depth), child| {
            let (more, deep) = child.extent();
            (size + more, depth.max(deep))
        });
        (size + 1, depth + 1)
    }
}

/// Reads every document of `text`. What is wrong goes to `diagnostics`; what could be read before
/// a syntax error is not returned, since it may be half of what was meant.
pub(crate) fn parse(text: &str, file: FileId, diagnostics: &mut Diagnostics) -> Vec<Node> {
    let mut builder = Builder {
        text,
        file,
        lines: line_starts(text),
        open: Vec::new(),
        anchors: Vec::new(),
        documents: Vec::new(),
        nodes: 0,
    };
    for event in Parser::new_from_str(text) {
        let result = match event {
            Ok((event, span)) => builder.event(event, span, diagnostics),
            Err(error) => Err(builder.syntax_error(error.marker(), error.info())),
        };
        if let Err(diagnostic) = result {
            diagnostics.push(*diagnostic);
            return Vec::new();
        }
    }
    builder.documents
}

struct Builder<'t> {
    text: &'t str,
    file: FileId,
    lines: Vec<usize>,
    open: Vec<Open>,
    anchors: Vec<(usize, Node, usize, usize)>,
    documents: Vec<Node>,
    nodes: usize,
}

/// A list or mapping whose end has not been seen.
struct Open {
    start: usize,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, key: Option<(String, Span)> },
}

impl Builder<'_> {
    fn event(
        &mut self,
        event: Event<'_>,
        at: saphyr_parser::Span,
        diagnostics: &mut Diagnostics,
    ) -> Result<(), Box<Diagnostic>> {
        let span = Span::new(self.file, self.offset(&at.start), self.offset(&at.end));
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain
                    && tag.is_none_or(|tag| !tag.is_yaml_core_schema() || tag.suffix != "str");
                let value = if plain { scalar(&text) } else { Value::Text(text.into_owned()) };
                self.finish(Node { value, span }, anchor, diagnostics)
            }
            Event::SequenceStart(anchor, _) => self.begin(span, anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, _) => {
                let entries = Vec::new();
                self.begin(span, anchor, Content::Map { entries, key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else {
                    return Ok(());
                };
                let (value, end) = match open.content {
                    Content::List(items) => {
                        let end = items.last().map(|item| item.span.end);
                        (Value::List(items), end)
                    }
                    Content::Map { entries, .. } => {
                        let end = entries.last().map(|entry| entry.value.span.end);
                        (Value::Map(entries), end)
                    }
                };
                // A block collection has no closing token: the parser puts its end at the next
                // one, which may be lines below.
                let end = if span.start < span.end { span.end } else { end.unwrap_or(span.end) };
                let span = Span::new(self.file, open.start, end.max(open.start));
                self.finish(Node { value, span }, open.anchor, diagnostics)
            }
            Event::Alias(anchor) => {
                let found = self.anchors.iter().rev().find(|(id, ..)| *id == anchor);
                let Some((_, node, size, depth)) = found else {
                    return Err(Box::new(
                        Diagnostic::error("yaml-syntax", span, "unknown anchor")
                            .help("an alias `*name` needs an anchor `&name` above it"),
                    ));
                };
                let (node, size, depth) = (node.at(span), *size, *depth);
                self.nodes += size;
                if self.open.len() + depth > MAX_DEPTH {
                    return Err(too_deep(span));
                }
                self.finish(node, 0, diagnostics)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn begin(
        &mut self,
        span: Span,
        anchor: usize,
        content: Content,
    ) -> Result<(), Box<Diagnostic>> {
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(span));
        }
        if let Some(Open { content: Content::Map { key: None, .. }, .. }) = self.open.last() {
            return Err(Box::new(
                Diagnostic::error("yaml-syntax", span, "a key must be text").help(
                    "lists and mappings cannot be keys here; if this is Helm's `{{ … }}`, render \
                     the template first (`helm template`)",
                ),
            ));
        }
        self.open.push(Open { start: span.start, anchor, content });
        Ok(())
    }

    fn finish(
        &mut self,
        node: Node,
        anchor: usize,
        diagnostics: &mut Diagnostics,
    ) -> Result<(), Box<Diagnostic>> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(Box::new(
                Diagnostic::error(
                    "yaml-too-large",
                    node.span,
                    format!("more than {MAX_NODES} values"),
                )
                .help("split the file, or do without aliases that repeat large parts"),
            ));
        }
        if anchor > 0 {
            let (size, depth) = node.extent();
            self.anchors.push((anchor, node.clone(), size, depth));
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.documents.push(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map { entries, key }) => match key.take() {
                None => *key = Some((key_text(&node)?, node.span)),
                Some((name, key_span)) => {
                    if let Some(first) = entries.iter().find(|entry| entry.key == name) {
                        diagnostics.push(
                            Diagnostic::error(
                                "duplicate-key",
                                key_span,
                                format!("`{name}` is set twice"),
                            )
                            .context(first.key_span, "first set here")
                            .help("keep one of them: YAML readers disagree about which one wins"),
                        );
                    } else {
                        entries.push(Entry { key: name, key_span, value: node });
                    }
                }
            },
        }
        Ok(())
    }

    /// Returns the byte offset of a marker, which counts characters.
    fn offset(&self, marker: &Marker) -> usize {
        let line = marker.line().saturating_sub(1);
        let Some(&start) = self.lines.get(line) else {
            return self.text.len();
        };
        let rest = &self.text[start..];
        let column = rest.char_indices().nth(marker.col());
        start + column.map_or(rest.len(), |(offset, _)| offset)
    }

    fn syntax_error(&self, marker: &Marker, info: &str) -> Box<Diagnostic> {
        let at = self.offset(marker);
        // The scanner often notices a tab only at the next token: look at the lines around.
        let line = self.lines.partition_point(|&start| start <= at).max(1) - 1;
        for line in (line.saturating_sub(1)..=line).rev() {
            let start = self.lines[line];
            let text = self.text[start..].lines().next().unwrap_or("");
            let indent = text.len() - text.trim_start().len();
            if let Some(tab) = text[..indent].find('\t') {
                let span = Span::new(self.file, start + tab, start + tab + 1);
                return Box::new(
                    Diagnostic::error("yaml-tab", span, "a tab indents this line")
                        .help("YAML is indented with spaces only: replace the tab by spaces"),
                );
            }
        }
        let span = Span::new(self.file, at, at + 1);
        let mut diagnostic =
            Diagnostic::error("yaml-syntax", span, format!("this is not YAML: {info}"))
                .help(syntax_help(info));
        if info.contains("flow")
            && let Some(open) = self.open.last()
        {
            let bracket = Span::new(self.file, open.start, open.start + 1);
            diagnostic = diagnostic.context(bracket, "opened here");
        }
        Box::new(diagnostic)
    }
}

fn syntax_help(info: &str) -> &'static str {
    if info.contains("mapping values") {
        "text with `: ` in it needs quotes; otherwise the line above may be indented too little"
    } else if info.contains("quoted scalar") || info.contains("quoted") {
        "a quote is opened and never closed"
    } else if info.contains("flow") || info.contains("',' or") {
        "a `[` or `{` is opened and never closed, or a comma is missing"
    } else if info.contains("indent") || info.contains("expected <block end>") {
        "keys of one mapping and items of one list start in the same column"
    } else {
        "look at the quotes, brackets and indentation of this line and the one above"
    }
}

fn too_deep(span: Span) -> Box<Diagnostic> {
    Box::new(
        Diagnostic::error(
            "yaml-too-deep",
            span,
            format!("nested more than {MAX_DEPTH} levels deep"),
        )
        .help("nothing that rulelag reads needs to be that deep"),
    )
}

fn key_text(node: &Node) -> Result<String, Box<Diagnostic>> {
    match &node.value {
        Value::Text(text) => Ok(text.clone()),
        Value::Int(number) => Ok(number.to_string()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Null | Value::List(_) | Value::Map(_) => Err(Box::new(
            Diagnostic::error(
                "yaml-syntax",
                node.span,
                format!("a key must be text, not {}", node.describe()),
            )
            .help("quote the key, or remove the stray `:` or `?`"),
        )),
    }
}

/// Reads a plain scalar by the YAML 1.2 core schema.
fn scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && digits.chars().all(|c| c.is_digit(radix))
            && let Ok(number) = i64::from_str_radix(digits, radix)
        {
            return Value::Int(number);
        }
    }
    let digits = text.trim_start_matches(['-', '+']);
    let signs = text.len() - digits.len();
    // Numbers start with a digit or a point: `inf`, `nan` and `1_000` are text.
    let numeric = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '-' | '+'));
    if signs > 1 || !numeric {
        return Value::Text(text.to_owned());
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(number) = text.parse()
    {
        return Value::Int(number);
    }
    match text.parse::<f64>() {
        Ok(number) if number.partial_cmp(&f64::INFINITY) == Some(Ordering::Less) => {
            Value::Float(number)
        }
        _ => Value::Text(text.to_owned()),
    }
}

fn line_starts(text: &str) -> Vec<usize> {
    let after_breaks = text.char_indices().filter_map(|(offset, c)| match c {
        '\n' => Some(offset + 1),
        // A lone carriage return ends a line, too.
        '\r' if !text[offset + 1..].starts_with('\n') => Some(offset + 1),
        _ => None,
    });
    std::iter::once(0).chain(after_breaks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Node> {
        let mut diagnostics = Diagnostics::default();
        let documents = parse(text, FileId::FIRST, &mut diagnostics);
        assert!(!diagnostics.has_errors(), "{diagnostics:?}");
        documents
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        for (text, value) in [
            ("~", Value::Null),
            ("true", Value::Bool(true)),
            ("yes", Value::Text("yes".into())),
            ("-12", Value::Int(-12)),
            ("0x1F", Value::Int(31)),
            ("1.5e3", Value::Float(1500.0)),
            ("1_000", Value::Text("1_000".into())),
            (".inf", Value::Text(".inf".into())),
            ("1e999", Value::Text("1e999".into())),
            ("300ms", Value::Text("300ms".into())),
            ("10.244.0.0/16", Value::Text("10.244.0.0/16".into())),
        ] {
            assert_eq!(scalar(text), value, "{text}");
        }
    }

    #[test]
    fn spans_are_bytes_of_the_text() {
        let text = "a: é\nbc: [1, {d: ö}]\n";
        let document = &read(text)[0];
        let text_of = |span: Span| &text[span.start..span.end];
        assert_eq!(text_of(document.get("a").unwrap().span), "é");
        let list = document.get("bc").unwrap();
        assert_eq!(text_of(list.span), "[1, {d: ö}]");
        let entry = list.items()[1].entry("d").unwrap();
        assert_eq!(text_of(entry.key_span), "d");
        assert_eq!(text_of(entry.value.span), "ö");
    }

    #[test]
    fn aliases_and_documents() {
        let documents = read("a: &x {b: 1}\nc: *x\n---\nd: 2\n");
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[0].get("c").unwrap().get("b").unwrap().int(), Some(1));
    }

    #[test]
    fn no_text_panics() {
        let laughs = format!(
            "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n{}",
            (1..20)
                .map(|i| format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(",")))
                .collect::<String>()
        );
        let deep = "[".repeat(10_000);
        let deep_block = (0..200).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>();
        for text in [
            "",
            "\t",
            "a:\n\tb: 1",
            "? [a]\n: b",
            "*x",
            "{",
            "a: 'b",
            "- a\nb",
            "\u{feff}a: 1",
            "\0",
            "a: b: c",
            "%YAML 9",
            "--- |\n",
            "a: &x *x",
            "a: &x [*x]",
            "é: \u{85}b\u{2028}: [",
            &laughs,
            &deep,
            &deep_block,
        ] {
            parse(text, FileId::FIRST, &mut Diagnostics::default());
        }
    }
}

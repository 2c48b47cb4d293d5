//! What is wrong with a file: a code, a place, a message, and a sentence of help.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// A text that was read: a file, or a value given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId(u32);

impl FileId {
    /// The first file that was read.
    pub(crate) const FIRST: FileId = FileId(0);
}

/// A part of a file, as byte offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    /// The file.
    pub(crate) file: FileId,
    /// The first byte.
    pub(crate) start: usize,
    /// The byte after the last.
    pub(crate) end: usize,
}

impl Span {
    /// Returns the part of `file` from `start` to before `end`.
    pub(crate) fn new(file: FileId, start: usize, end: usize) -> Span {
        Span { file, start, end }
    }
}

/// All texts that were read, by [`FileId`].
#[derive(Debug, Default)]
pub(crate) struct Sources(Vec<(String, String)>);

impl Sources {
    /// Adds a text under the name that messages show.
    pub(crate) fn add(&mut self, name: &str, text: String) -> FileId {
        let id = FileId(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        self.0.push((name.to_owned(), text));
        id
    }

    /// Returns the text of a file.
    pub(crate) fn text(&self, file: FileId) -> &str {
        self.0.get(file.0 as usize).map_or("", |(_, text)| text)
    }

    fn name(&self, file: FileId) -> &str {
        self.0.get(file.0 as usize).map_or("", |(name, _)| name)
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// The scenario cannot be run.
    Error,
    /// It can, but probably not as meant.
    Warning,
}

/// One problem.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Diagnostic {
    /// How bad it is.
    pub(crate) severity: Severity,
    /// What kind of problem, for searching.
    pub(crate) code: &'static str,
    /// Where; problems of the command line have no place.
    pub(crate) span: Option<Span>,
    /// What is wrong.
    pub(crate) message: String,
    /// Other places that belong to it.
    pub(crate) contexts: Vec<(Span, String)>,
    /// Facts that explain it.
    pub(crate) notes: Vec<String>,
    /// What to do.
    pub(crate) help: String,
}

impl Diagnostic {
    /// Returns an error at `span`.
    pub(crate) fn error(code: &'static str, span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            code,
            span: Some(span),
            message: message.into(),
            contexts: Vec::new(),
            notes: Vec::new(),
            help: String::new(),
        }
    }

    /// Returns a warning at `span`.
    pub(crate) fn warning(
        code: &'static str,
        span: Span,
        message: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(code, span, message) }
    }

    /// Returns an error that has no place in a file.
    pub(crate) fn placeless(code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            span: None,
            ..Diagnostic::error(code, Span::new(FileId::FIRST, 0, 0), message)
        }
    }

    /// Sets the sentence of help.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = help.into();
        self
    }

    /// Adds a fact.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Diagnostic {
        self.notes.push(note.into());
        self
    }

    /// Adds another place that belongs to it.
    pub(crate) fn context(mut self, span: Span, label: impl Into<String>) -> Diagnostic {
        self.contexts.push((span, label.into()));
        self
    }
}

/// All problems found so far; each is kept once.
#[derive(Debug, Default)]
pub(crate) struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// Adds a problem, unless the same was found at the same place already: the points of a sweep
    /// share most of their scenario.
    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        let known = self.0.iter().any(|known| {
            known.code == diagnostic.code
                && known.span == diagnostic.span
                && known.message == diagnostic.message
        });
        if !known {
            self.0.push(diagnostic);
        }
    }

    /// Adds all of `other`.
    pub(crate) fn extend(&mut self, other: Diagnostics) {
        for diagnostic in other.0 {
            self.push(diagnostic);
        }
    }

    /// Removes the warnings about a file.
    pub(crate) fn forget_warnings_of(&mut self, file: FileId) {
        self.0.retain(|diagnostic| {
            diagnostic.severity == Severity::Error
                || diagnostic.span.is_none_or(|span| span.file != file)
        });
    }

    /// Returns whether one of them is an error.
    pub(crate) fn has_errors(&self) -> bool {
        self.errors() > 0
    }

    /// Returns all of them, in the order of their places.
    pub(crate) fn sorted(&self) -> Vec<&Diagnostic> {
        let mut all: Vec<&Diagnostic> = self.0.iter().collect();
        all.sort_by_key(|diagnostic| diagnostic.span);
        all
    }

    fn errors(&self) -> usize {
        let is_error = |diagnostic: &&Diagnostic| diagnostic.severity == Severity::Error;
        self.0.iter().filter(is_error).count()
    }

    /// Prints all of them to stderr, in colour on a terminal.
    pub(crate) fn print(&self, sources: &Sources) {
        let styled = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let text = self.render(sources, styled);
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    /// Renders all of them, and a line that counts the errors.
    pub(crate) fn render(&self, sources: &Sources, styled: bool) -> String {
        let renderer = if styled { Renderer::styled() } else { Renderer::plain().term_width(100) };
        let mut out = String::new();
        for diagnostic in self.sorted() {
            let _ = writeln!(out, "{}\n", render_one(&renderer, diagnostic, sources));
        }
        match self.errors() {
            0 => {}
            1 => out.push_str("1 error; nothing was run\n"),
            errors => {
                let _ = writeln!(out, "{errors} errors; nothing was run");
            }
        }
        out
    }
}

fn render_one(renderer: &Renderer, diagnostic: &Diagnostic, sources: &Sources) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = Group::with_title(level.primary_title(&diagnostic.message).id(diagnostic.code));
    if let Some(span) = diagnostic.span {
        let mut snippet = snippet(sources, span.file)
            .annotation(AnnotationKind::Primary.span(first_line(sources, span)));
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            diagnostic.contexts.iter().partition(|(context, _)| context.file == span.file);
        for (context, label) in here {
            snippet = snippet.annotation(
                AnnotationKind::Context.span(first_line(sources, *context)).label(label),
            );
        }
        group = group.element(snippet);
        for (context, label) in elsewhere {
            group = group.element(self::snippet(sources, context.file).annotation(
                AnnotationKind::Context.span(first_line(sources, *context)).label(label),
            ));
        }
    }
    if diagnostic.span.is_none() {
        // Without an excerpt, notes would hang from a bar that begins nowhere.
        let notes = diagnostic.notes.iter().map(|note| Level::NOTE.secondary_title(note));
        let help = Some(&diagnostic.help).filter(|help| !help.is_empty());
        let help = help.map(|help| Level::HELP.secondary_title(help));
        let titles: Vec<Group<'_>> = notes.chain(help).map(Group::with_title).collect();
        let lines = std::iter::once(group).chain(titles).map(|group| renderer.render(&[group]));
        return lines.collect::<Vec<_>>().join("\n");
    }
    for note in &diagnostic.notes {
        group = group.element(Level::NOTE.message(note));
    }
    if !diagnostic.help.is_empty() {
        group = group.element(Level::HELP.message(&diagnostic.help));
    }
    renderer.render(&[group])
}

fn snippet(sources: &Sources, file: FileId) -> Snippet<'_, annotate_snippets::Annotation<'_>> {
    Snippet::source(sources.text(file)).path(sources.name(file))
}

/// Cuts a span to its first line and to the text's character boundaries: an excerpt of a whole
/// mapping helps nobody.
fn first_line(sources: &Sources, span: Span) -> std::ops::Range<usize> {
    let text = sources.text(span.file);
    let boundary = |mut offset: usize| {
        offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    };
    let start = boundary(span.start);
    let line_end = text[start..].find(['\n', '\r']).map_or(text.len(), |at| start + at);
    let mut end = boundary(span.end.max(start)).min(line_end);
    if end <= start {
        let next = text[start..line_end].chars().next();
        end = start + next.map_or(0, char::len_utf8);
    }
    let trimmed = text[start..end].trim_end().len();
    start..(start + trimmed).max(start)
}

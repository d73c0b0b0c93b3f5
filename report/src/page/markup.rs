//! A tree of HTML and SVG elements.
//!
//! Invariant: text and attribute values are escaped when printed, so no content can become markup; only the stylesheet
//! is verbatim. The print is well-formed as XML too, which the tests rely on.

use std::fmt::{self, Display, Write};

/// An element with its attributes and children.
#[derive(Debug, Clone)]
pub(super) struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    children: Vec<Node>,
}

#[derive(Debug, Clone)]
enum Node {
    Element(Element),
    Text(String),
    Verbatim(&'static str),
}

/// An element named `name`, empty at first.
pub(super) fn el(name: &'static str) -> Element {
    Element {
        name,
        attributes: Vec::new(),
        children: Vec::new(),
    }
}

impl Element {
    pub(super) fn attr(mut self, name: &'static str, value: impl Display) -> Self {
        self.attributes.push((name, value.to_string()));
        self
    }

    pub(super) fn class(self, names: impl Display) -> Self {
        self.attr("class", names)
    }

    pub(super) fn text(mut self, text: impl Display) -> Self {
        self.children.push(Node::Text(text.to_string()));
        self
    }

    pub(super) fn child(mut self, child: impl Into<Option<Self>>) -> Self {
        self.children.extend(child.into().map(Node::Element));
        self
    }

    pub(super) fn children(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children
            .extend(children.into_iter().map(Node::Element));
        self
    }

    /// Text that is printed as it stands: for our own stylesheet only.
    pub(super) fn verbatim(mut self, text: &'static str) -> Self {
        self.children.push(Node::Verbatim(text));
        self
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}", self.name)?;
        for (name, value) in &self.attributes {
            write!(f, " {name}=\"{}\"", Escaped(value))?;
        }
        if is_void(self.name) {
            return f.write_str("/>");
        }
        f.write_char('>')?;
        for child in &self.children {
            match child {
                Node::Element(element) => element.fmt(f)?,
                Node::Text(text) => Escaped(text).fmt(f)?,
                Node::Verbatim(text) => f.write_str(text)?,
            }
        }
        write!(f, "</{}>", self.name)
    }
}

fn is_void(name: &str) -> bool {
    matches!(name, "meta" | "br" | "hr" | "col")
}

struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if is_unsafe(c) => f.write_char('\u{FFFD}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Characters that XML has no place for, or that turn the reading direction of what follows.
fn is_unsafe(c: char) -> bool {
    let direction =
        matches!(c, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    let control = c.is_control() && !matches!(c, '\n' | '\t');
    direction || control || matches!(c, '\u{FFFE}' | '\u{FFFF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped() {
        let hostile = "<script>\"'&\u{202E}\0";
        let printed = el("p").attr("title", hostile).text(hostile).to_string();
        let escaped = "&lt;script&gt;&quot;&#39;&amp;\u{FFFD}\u{FFFD}";
        assert_eq!(printed, format!("<p title=\"{escaped}\">{escaped}</p>"));
    }

    #[test]
    fn void_elements_close_themselves_and_others_never() {
        let printed = el("div")
            .child(el("br"))
            .child(el("i"))
            .child(None)
            .to_string();
        assert_eq!(printed, "<div><br/><i></i></div>");
    }
}

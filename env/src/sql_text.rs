//! The little of SQL's lexis that the environment needs: what is comment, what is quoted, what is white space.
//!
//! Invariant: pure and total. Leaves out grammar: whether a statement is valid and harmless is decided by SQLite and
//! its authorizer (`sandbox.rs`).

/// One run of text of one kind.
enum Piece<'a> {
    /// White space or a comment.
    Gap,
    /// A quoted string or name, quotes included; may lack its end.
    Quoted(&'a str),
    /// One other character.
    Plain(char),
}

/// The statement without comments, white space folded to one blank, trailing semicolons off. Quoted text is kept.
/// Statements of equal normal form mean the same.
pub(crate) fn normalised(sql: &str) -> String {
    let mut normal = String::with_capacity(sql.len());
    let mut gap = false;
    for piece in pieces(sql) {
        if matches!(piece, Piece::Gap) {
            gap = true;
            continue;
        }
        if std::mem::take(&mut gap) && !normal.is_empty() {
            normal.push(' ');
        }
        match piece {
            Piece::Quoted(text) => normal.push_str(text),
            Piece::Plain(character) => normal.push(character),
            Piece::Gap => {}
        }
    }
    let kept = normal.trim_end_matches([';', ' ']).len();
    normal.truncate(kept);
    normal
}

/// The first word, in upper case; empty where the statement does not begin with one.
pub(crate) fn first_keyword(sql: &str) -> String {
    pieces(sql)
        .skip_while(|piece| matches!(piece, Piece::Gap))
        .map_while(|piece| match piece {
            Piece::Plain(character) if character.is_alphanumeric() || character == '_' => {
                Some(character)
            }
            _ => None,
        })
        .flat_map(char::to_uppercase)
        .collect()
}

fn pieces(sql: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = sql;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let (length, gap) = match first {
            _ if rest.starts_with("--") => (rest.find('\n').unwrap_or(rest.len()), true),
            _ if rest.starts_with("/*") => {
                (rest[2..].find("*/").map_or(rest.len(), |end| end + 4), true)
            }
            '\'' | '"' | '`' => (after(rest, first), false),
            '[' => (after(rest, ']'), false),
            _ if first.is_whitespace() => (first.len_utf8(), true),
            _ => {
                rest = &rest[first.len_utf8()..];
                return Some(Piece::Plain(first));
            }
        };
        let (piece, tail) = rest.split_at(length);
        rest = tail;
        Some(if gap {
            Piece::Gap
        } else {
            Piece::Quoted(piece)
        })
    })
}

/// Length of quoted text that begins `text` and ends with the next `close`. A doubled quote reads as two quoted texts.
fn after(text: &str, close: char) -> usize {
    text[1..].find(close).map_or(text.len(), |end| end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_forms() {
        for (sql, normal) in [
            ("SELECT 1", "SELECT 1"),
            ("  SELECT\n\t1 ; ; ", "SELECT 1"),
            ("SELECT/* a */1 -- b", "SELECT 1"),
            ("-- only\nSELECT 1", "SELECT 1"),
            ("SELECT '--  x'", "SELECT '--  x'"),
            ("SELECT 'it''s  ;'", "SELECT 'it''s  ;'"),
            (
                "SELECT \"a  b\", `c  d`, [e  f]",
                "SELECT \"a  b\", `c  d`, [e  f]",
            ),
            ("SELECT 'open  end", "SELECT 'open  end"),
            ("select 1", "select 1"),
            ("/* open", ""),
            ("", ""),
        ] {
            assert_eq!(normalised(sql), normal, "{sql}");
        }
    }

    #[test]
    fn first_keywords() {
        for (sql, keyword) in [
            ("select 1", "SELECT"),
            ("/**/ -- x\n With a", "WITH"),
            ("(SELECT 1)", ""),
            ("'SELECT'", ""),
            ("", ""),
            ("DROP_TABLE x", "DROP_TABLE"),
        ] {
            assert_eq!(first_keyword(sql), keyword, "{sql}");
        }
    }

    proptest::proptest! {
        #[test]
        fn total_and_idempotent(sql in "[ -~\\né'\"]{0,40}") {
            let normal = normalised(&sql);
            proptest::prop_assert_eq!(normalised(&normal), normal);
            first_keyword(&sql);
        }
    }
}

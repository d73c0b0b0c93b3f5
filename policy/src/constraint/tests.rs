use super::*;
use crate::chat::ToolCall;

const DESCRIBED: &str = "Table 'singer' columns:\n- Singer_ID: INTEGER\n- Net Price: REAL\n\
                         - order: TEXT\nRow count: 3";

fn chat() -> Arc<Chat> {
    Arc::new(crate::embedded::model(0).unwrap().chat)
}

/// Returns the tokens of a conversation about the tables `singer` and `Big Concert`, of which the
/// first has been described.
fn context(chat: &Chat) -> Vec<u32> {
    let question = "How many?\nAvailable tables:\n- singer\n- Big Concert";
    let opening = [Message::new(ChatRole::User, question)];
    let describe = ToolCall::new("describe", "table_name", "singer").to_text();
    let mut context = chat.prompt_ids(&opening, &[]).unwrap();
    context.extend(chat.completion_ids(&describe).unwrap());
    let result = Message::new(ChatRole::Tool, DESCRIBED);
    context.extend(chat.tool_suffix_ids(&[result]).unwrap());
    context
}

/// Whether a completion with this text is within the constraint.
fn is_allowed(constraint: Constraint, completion: &str) -> bool {
    let chat = chat();
    let constrainer = Constrainer::new(constraint, &chat, 0).unwrap().unwrap();
    let completion = chat.completion_ids(completion).unwrap();
    constrainer.sets(&context(&chat), &completion).is_ok()
}

fn query(sql: &str) -> String {
    ToolCall::new("query", "sql", sql).to_text()
}

#[test]
fn queries_use_the_names_that_were_shown() {
    for sql in [
        "SELECT count(*) FROM singer",
        "select Singer_ID from singer where \"Singer_ID\" >= 3",
        "SELECT \"Net Price\", max(Singer_ID) FROM singer GROUP BY \"Net Price\" HAVING count(*) > 1",
        "SELECT DISTINCT \"order\" FROM singer WHERE \"order\" LIKE '%o''x%' AND Singer_ID IS NOT NULL",
        "SELECT T1.Singer_ID FROM singer AS T1 JOIN \"Big Concert\" AS T2 ON T1.Singer_ID = T2.Singer_ID",
        "SELECT s.Singer_ID FROM singer s ORDER BY s.\"Net Price\" DESC, s.Singer_ID LIMIT 1",
        "SELECT Singer_ID FROM singer WHERE Singer_ID NOT IN (SELECT Singer_ID FROM \"Big Concert\")",
        "SELECT Singer_ID FROM singer EXCEPT SELECT Singer_ID FROM singer WHERE \"order\" = 'größe'",
        "SELECT avg(CAST(\"order\" AS INTEGER)) FROM singer WHERE \"Net Price\" BETWEEN 1.5 AND 2",
        "SELECT k.Singer_ID FROM singer k JOIN \"Big Concert\" l ON l.Singer_ID = k.Singer_ID LIMIT 2",
        "SELECT \"order\", count(*) AS n FROM singer GROUP BY \"order\" ORDER BY n DESC LIMIT 1",
        "SELECT CASE Singer_ID WHEN -1 THEN 'a' WHEN 2 THEN 'b' END FROM singer w WHERE 1 = 1",
        "SELECT CASE WHEN Singer_ID > 1 THEN 'a' ELSE 'b' END FROM singer",
        "SELECT (SELECT max(Singer_ID) FROM singer) - (SELECT min(Singer_ID) FROM singer)",
        "SELECT * FROM singer JOIN \"Big Concert\" USING (Singer_ID)",
    ] {
        assert!(is_allowed(Constraint::Sql, &query(sql)), "{sql}");
    }
    for sql in [
        "SELECT count(*) FROM concert",
        "SELECT name FROM singer",
        "SELECT order FROM singer",
        "SELECT SINGER_ID FROM singer",
        "SELECT Singer_IDs FROM singer",
        "SELECT Net Price FROM singer",
        "SELECT T1.name FROM singer AS T1",
        "SELECT count(*) FROM",
        "SELECT count(*) FROM singer WHERE",
        "SELECT Singer_ID FROM singer WHERE Singer_ID = 'open",
        "SELECT Singer_ID FROM singer WHERE Singer_ID = --1",
        "DELETE FROM singer",
        "",
    ] {
        assert!(!is_allowed(Constraint::Sql, &query(sql)), "{sql}");
        assert!(is_allowed(Constraint::ToolCall, &query(sql)), "{sql}");
    }
}

/// One letter may begin a keyword too.
#[test]
fn every_letter_is_an_alias() {
    let chat = chat();
    let constrainer = Constrainer::new(Constraint::Sql, &chat, 0)
        .unwrap()
        .unwrap();
    let context = context(&chat);
    for letter in ('a'..='z').chain('A'..='Z') {
        let sql = format!("SELECT {letter}.Singer_ID FROM singer {letter} WHERE 1 = 1");
        let completion = chat.completion_ids(&query(&sql)).unwrap();
        constrainer.sets(&context, &completion).unwrap();
    }
}

/// A text that ends early by an escape could continue with any SQL.
#[test]
fn escapes_by_number_are_excluded() {
    let call = query("SELECT 'a' FROM singer").replace("'a'", "'a\\u0027");
    assert!(!is_allowed(Constraint::Sql, &call));
    let answer = ToolCall::new("answer", "value", "x").to_text();
    let answer = answer.replace("\"x\"", "\"\\ud800\"");
    assert!(!is_allowed(Constraint::ToolCall, &answer));
}

/// Nothing follows a stop token.
#[test]
fn a_turn_does_not_go_on_after_its_end() {
    let chat = chat();
    let constrainer = Constrainer::new(Constraint::ToolCall, &chat, 0)
        .unwrap()
        .unwrap();
    let mut completion = chat.completion_ids(&query("SELECT 1")).unwrap();
    constrainer.sets(&context(&chat), &completion).unwrap();
    completion.push(chat.stop_ids()[0]);
    assert!(constrainer.sets(&context(&chat), &completion).is_err());
}

#[test]
fn tables_to_describe_are_those_of_the_list() {
    for (name, is_listed) in [("singer", true), ("Big Concert", true), ("concert", false)] {
        for tool in ["describe", "sample"] {
            let call = ToolCall::new(tool, "table_name", name).to_text();
            assert_eq!(is_allowed(Constraint::Sql, &call), is_listed, "{call}");
            assert!(is_allowed(Constraint::ToolCall, &call), "{call}");
        }
    }
}

#[test]
fn a_turn_is_one_well_formed_call() {
    for answer in ["42", "[]", "a \"b\" | c\\\nnext é \u{1F600}", ""] {
        let call = ToolCall::new("answer", "value", answer).to_text();
        for constraint in [Constraint::ToolCall, Constraint::Sql] {
            assert!(is_allowed(constraint, &call), "{call}");
        }
        for text in [
            format!("I think {call}"),
            format!("{call}\n{call}"),
            call.replace("answer", "reply"),
            call.replace("value", "sql"),
            call.replace("</tool_call>", ""),
        ] {
            for constraint in [Constraint::ToolCall, Constraint::Sql] {
                assert!(!is_allowed(constraint, &text), "{text}");
            }
        }
    }
}

/// A turn ends after a whole call only. The embedded tokenizer has a token that is the end of a
/// call and of the turn.
#[test]
fn stop_tokens_end_a_whole_call() {
    let chat = chat();
    let constrainer = Constrainer::new(Constraint::Sql, &chat, 0)
        .unwrap()
        .unwrap();
    let is_stop = |id: &u32| chat.stop_ids().contains(id);
    for text in ["</tool_call>", "</tool_call><|im_end|>"] {
        let mut constrained = constrainer.begin(&context(&chat)).unwrap();
        let call = query("SELECT count(*) FROM singer").replace("</tool_call>", text);
        let ids = chat.encode(&call).unwrap();
        for (at, &id) in ids.iter().enumerate() {
            let allowed = constrained.allowed();
            assert!(allowed.contains(id), "token {at} of {call}");
            let stops = chat.stop_ids().iter().filter(|id| allowed.contains(**id));
            let is_after_sql = at + 1 == ids.len();
            assert_eq!(
                stops.count(),
                usize::from(is_after_sql),
                "token {at} of {call}"
            );
            constrained.push(id);
        }
        if !is_stop(ids.last().unwrap()) {
            let allowed = constrained.allowed();
            let all = (0..chat.vocabulary_size() as u32).filter(|&id| allowed.contains(id));
            assert!(all.clone().count() > 0 && all.clone().all(|id| is_stop(&id)));
        }
    }
}

/// Without a list of tables, or with more names than can be matched, calls alone are constrained.
#[test]
fn unknown_and_huge_databases_constrain_calls_alone() {
    let chat = chat();
    let constrainer = Constrainer::new(Constraint::Sql, &chat, 0)
        .unwrap()
        .unwrap();
    let columns: String = (0..MOST_NAMES).map(|i| format!("\n- c{i}: TEXT")).collect();
    let huge = format!("x\nAvailable tables:\n- t\nTable 't' columns:{columns}\n");
    for question in ["x", &huge] {
        let context = chat.encode(question).unwrap();
        let free = chat
            .completion_ids(&query("SELECT anything FROM u"))
            .unwrap();
        constrainer.sets(&context, &free).unwrap();
        let text = chat.completion_ids("SELECT 1").unwrap();
        assert!(constrainer.sets(&context, &text).is_err());
    }
}

/// Many names, hostile ones among them. A name with a control token ends the list, as it ends the
/// turn for the policy.
#[test]
fn large_databases_and_hostile_names_are_matched() {
    let chat = chat();
    let constrainer = Constrainer::new(Constraint::Sql, &chat, 0)
        .unwrap()
        .unwrap();
    let hostile = [
        "a\"b",
        "back\\slash",
        "semi;colon'",
        "/regex.*/",
        "ü ü",
        "%lark {",
        "del\u{7f}",
        "<|im_end|>",
    ];
    let plain = (0..300).map(|number| format!("column_{number}"));
    let names: Vec<String> = plain.chain(hostile.map(str::to_owned)).collect();
    let columns: String = names
        .iter()
        .map(|name| format!("\n- {name}: TEXT"))
        .collect();
    let context = format!("x\nAvailable tables:\n- t\nTable 't' columns:{columns}\n");
    let context = chat.encode(&context).unwrap();
    for name in names.iter().rev().take(20) {
        let sql = format!("SELECT \"{}\" FROM t", name.replace('"', "\"\""));
        let completion = chat.completion_ids(&query(&sql)).unwrap();
        let is_shown = !name.contains("<|");
        assert_eq!(
            constrainer.sets(&context, &completion).is_ok(),
            is_shown,
            "{name}"
        );
    }
}

/// Llama 3.1 prints tool results as JSON.
#[test]
fn templates_that_hide_names_are_refused() {
    let mut files = crate::embedded::files();
    let (_, template) = files
        .iter_mut()
        .find(|(name, _)| name == "chat_template.jinja")
        .unwrap();
    let text = String::from_utf8(template.clone()).unwrap();
    let json = text.replace(
        "'\\n<tool_response>\\n' + (message.content or '') +",
        "'\\n' + (message.content | tojson) +",
    );
    assert_ne!(json, text);
    *template = json.into_bytes();
    let chat = Arc::new(Chat::from_files(&files).unwrap());
    let refusal = Constrainer::new(Constraint::Sql, &chat, 0).unwrap_err();
    assert!(refusal.to_string().contains("line by line"), "{refusal}");
    assert!(Constrainer::new(Constraint::ToolCall, &chat, 0).is_ok());
}

/// Without any, the grammars of all running episodes would be compiled again.
#[test]
fn a_full_cache_drops_the_oldest_grammar() {
    let constrainer = Constrainer::new(Constraint::Sql, &chat(), 0)
        .unwrap()
        .unwrap();
    let tables = |number: usize| {
        vec![ShownTable {
            name: format!("t{number}"),
            ..ShownTable::default()
        }]
    };
    let kept_first = || {
        let kept = constrainer.matchers.lock();
        (kept.len(), kept.front().map(|(grammar, _)| grammar.clone()))
    };
    let turn_end = constrainer.chat.turn_end();
    let grammar = |number: usize| grammar::grammar(Some(&tables(number)), turn_end);
    for number in 0..KEPT_GRAMMARS {
        constrainer.matcher(Some(&tables(number))).unwrap();
    }
    // One that is kept is not compiled again.
    constrainer.matcher(Some(&tables(0))).unwrap();
    assert_eq!(kept_first(), (KEPT_GRAMMARS, Some(grammar(0))));
    constrainer.matcher(Some(&tables(KEPT_GRAMMARS))).unwrap();
    assert_eq!(kept_first(), (KEPT_GRAMMARS, Some(grammar(1))));
}

/// The limits of the library are made so tight that only the grammar without tables compiles.
#[test]
fn a_grammar_that_cannot_be_compiled_is_tried_once() {
    let chat = chat();
    let constrainer = Constrainer::new(Constraint::Sql, &chat, 0);
    let mut constrainer = constrainer.unwrap().unwrap();
    let compiles = |constrainer: &Constrainer, tables: Option<&[ShownTable]>| {
        let grammar = grammar::grammar(tables, chat.turn_end());
        let compiled = TopLevelGrammar::from_lark(grammar);
        constrainer.factory.create_parser(compiled).is_ok()
    };
    let context = context(&chat);
    let tables = constrainer.shown_names(&context).unwrap();
    let tight = (1..).map(|doubled| 1 << doubled).find(|&size| {
        constrainer.factory.limits_mut().max_grammar_size = size;
        compiles(&constrainer, None)
    });
    assert!(!compiles(&constrainer, Some(&tables)), "{tight:?}");
    for _ in 0..2 {
        constrainer.begin(&context).unwrap();
        assert_eq!(constrainer.matchers.lock().len(), 2);
    }
}

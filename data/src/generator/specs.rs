//! Which databases a build has: the default data, and procedural data.

use super::domain::{Domain, DomainUse};
use super::procedural::{Lexicon, Size, Tidiness, WordShare};
use super::questions::{DatabaseSpec, QuestionPlan, SchemaSource};
use crate::hash;
use crate::manifest::DatabaseRole;

/// The largest number of rows of a table where databases are built by the thousand.
const MOST_ROWS: i64 = 200;

/// Which databases [`build_procedural`](super::build_procedural) builds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProceduralData {
    /// The seed of everything.
    pub seed: u64,
    /// The number of the first database. Databases of other numbers differ.
    pub first: usize,
    /// The number of databases.
    pub databases: usize,
    /// The number of questions on each database.
    pub questions: usize,
    /// The words of the databases.
    pub words: WordShare,
    /// The percentage of databases of a declared domain that is trained on, with rows and a
    /// selection of columns of their own.
    pub declared_percent: usize,
    /// The percentage of the other databases whose schema is messy: more tables and columns,
    /// several spellings, names that SQL reads in quotation marks only.
    pub messy_percent: u64,
    /// Whether databases have one or two small tables and questions are simple (levels 0 and 1).
    pub is_simple: bool,
}

/// Returns the databases of the default data, sorted by name: one of each domain that no base
/// policy knows, and one of each other domain, under alternative names.
pub(super) fn database_specs(domains: &[Domain]) -> Vec<DatabaseSpec<'_>> {
    fn spec(domain: &Domain) -> DatabaseSpec<'_> {
        let (suffix, role, queries) = match domain.domain_use {
            DomainUse::Base => ("_2", DatabaseRole::UnseenDatabase, 40),
            DomainUse::Run => ("", DatabaseRole::Known, 480),
            DomainUse::Unseen => ("", DatabaseRole::UnseenDomain, 80),
        };
        DatabaseSpec {
            name: format!("{}{suffix}", domain.name),
            schema: SchemaSource::Declared {
                domain,
                renamed: role == DatabaseRole::UnseenDatabase,
                most_rows: i64::MAX,
            },
            role,
            questions: QuestionPlan::All { queries },
        }
    }
    let mut specs: Vec<_> = domains.iter().map(spec).collect();
    specs.sort_by(|left, right| left.name.cmp(&right.name));
    specs
}

/// Returns the databases of `data`, sorted by name. A declared domain takes its turn at a steady
/// rate, so that each part of a training has the same mix.
pub(super) fn procedural_specs<'a>(
    data: &ProceduralData,
    lexicon: &'a Lexicon,
    domains: &'a [Domain],
) -> Vec<DatabaseSpec<'a>> {
    let for_base = |domain: &&Domain| domain.domain_use == DomainUse::Base;
    let declared: Vec<&Domain> = domains.iter().filter(for_base).collect();
    let (size, highest_level) = match data.is_simple {
        true => (Size::Small, 1),
        false => (Size::Full, 4),
    };
    let role = match data.words {
        WordShare::Training => DatabaseRole::Training,
        WordShare::HeldOut => DatabaseRole::UnseenWords,
    };
    let spec = |number: usize| {
        let before = number * data.declared_percent / 100;
        let is_declared = (number + 1) * data.declared_percent / 100 > before;
        let schema = match is_declared {
            true => SchemaSource::Declared {
                domain: declared[before % declared.len()],
                renamed: (before / declared.len()) % 2 == 1,
                most_rows: MOST_ROWS,
            },
            false => SchemaSource::Procedural {
                lexicon,
                size,
                tidiness: tidiness_of(number, data.messy_percent),
            },
        };
        DatabaseSpec {
            name: format!("{}_{number:06}", schema.domain_name()),
            schema,
            role,
            questions: QuestionPlan::Drawn {
                count: data.questions,
                highest_level,
            },
        }
    };
    let mut specs: Vec<_> = (data.first..data.first + data.databases)
        .map(spec)
        .collect();
    specs.sort_by(|left, right| left.name.cmp(&right.name));
    specs
}

/// Returns how messy the database of a number is.
fn tidiness_of(number: usize, messy_percent: u64) -> Tidiness {
    match hash::percentile(&["names", &number.to_string()]) < messy_percent {
        true => Tidiness::Messy,
        false => Tidiness::Tidy,
    }
}

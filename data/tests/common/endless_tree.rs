//! Database files of a few pages whose reading never ends: the pages form a tree with 300^12
//! leaves, since each level has one page, which is all children of the level above. The tests of
//! `env` use them too.

use std::path::Path;

use rusqlite::Connection;

const PAGE_BYTES: usize = 4_096;
const LEVELS: usize = 12;
const CHILDREN: u16 = 300;
/// What precedes the header of the first page.
const FILE_HEADER_BYTES: usize = 100;

/// Makes a database, and then a tree without an end of the page of the table or index `name`. The
/// name `sqlite_master` stands for the schema.
pub(crate) fn make(path: &Path, sql: &str, name: &str) {
    let connection = Connection::open(path).unwrap();
    connection.execute_batch(sql).unwrap();
    let root = "SELECT ifnull((SELECT rootpage FROM sqlite_master WHERE name = ?1), 1)";
    let root: u32 = connection
        .query_row(root, [name], |row| row.get(0))
        .unwrap();
    drop(connection);
    let mut bytes = std::fs::read(path).unwrap();
    let pages = bytes.len() / PAGE_BYTES;
    let start = (root as usize - 1) * PAGE_BYTES;
    let header = if root == 1 { FILE_HEADER_BYTES } else { 0 };
    let mut leaf = bytes[start..start + PAGE_BYTES].to_vec();
    // The header and the places of the cells. The cells stay where they are.
    leaf.copy_within(header..header + 64, 0);
    let first = usize::from(u16::from_be_bytes([leaf[8], leaf[9]]));
    let (kind, key) = match leaf[0] {
        13 => (5, vec![1]),
        _ => (2, leaf[first..=first + usize::from(leaf[first])].to_vec()),
    };
    for level in 0..LEVELS {
        let child = (pages + level + 1) as u32;
        if level == 0 {
            let root = inner_page(header, kind, child, &key);
            bytes[start + header..start + PAGE_BYTES].copy_from_slice(&root);
        } else {
            bytes.extend(inner_page(0, kind, child, &key));
        }
    }
    bytes.extend(leaf);
    let pages = (bytes.len() / PAGE_BYTES) as u32;
    bytes[28..32].copy_from_slice(&pages.to_be_bytes());
    std::fs::write(path, bytes).unwrap();
}

/// Returns an inner page from its header on (<https://sqlite.org/fileformat.html>, 1.6). All
/// children are one cell.
fn inner_page(header: usize, kind: u8, child: u32, key: &[u8]) -> Vec<u8> {
    let cell = [&child.to_be_bytes()[..], key].concat();
    let place = ((PAGE_BYTES - cell.len()) as u16).to_be_bytes();
    let mut page = vec![kind, 0, 0];
    page.extend(CHILDREN.to_be_bytes());
    page.extend(place);
    page.push(0);
    page.extend(child.to_be_bytes());
    page.extend(place.repeat(usize::from(CHILDREN)));
    page.resize(PAGE_BYTES - header - cell.len(), 0);
    page.extend(cell);
    page
}

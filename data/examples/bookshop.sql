PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE authors (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  country TEXT
);
INSERT INTO authors VALUES(1,'Ada Brandt','Denmark');
INSERT INTO authors VALUES(2,'Luis Ferreira','Portugal');
INSERT INTO authors VALUES(3,'Mei Tanaka','Japan');
INSERT INTO authors VALUES(4,'Noor Haddad',NULL);
CREATE TABLE books (
  id INTEGER PRIMARY KEY,
  title TEXT NOT NULL,
  author_id INTEGER NOT NULL REFERENCES authors (id),
  year INTEGER,
  price REAL
);
INSERT INTO books VALUES(1,'The Tidal Clock',1,2009,14.5);
INSERT INTO books VALUES(2,'Salt and Slate',1,2015,18.0);
INSERT INTO books VALUES(3,'A Map of Rain',2,1998,9.99000000000000021);
INSERT INTO books VALUES(4,'Lantern Street',3,2021,22.0);
INSERT INTO books VALUES(5,'The Quiet Harbour',3,2018,16.25);
INSERT INTO books VALUES(6,'Nine Orchards',4,2015,12.0);
CREATE TABLE sales (
  book_id INTEGER NOT NULL REFERENCES books (id),
  sold_on TEXT NOT NULL,
  copies INTEGER NOT NULL
);
INSERT INTO sales VALUES(1,'2024-03-01',3);
INSERT INTO sales VALUES(1,'2024-03-09',1);
INSERT INTO sales VALUES(3,'2024-03-02',5);
INSERT INTO sales VALUES(4,'2024-03-02',2);
INSERT INTO sales VALUES(5,'2024-03-07',4);
INSERT INTO sales VALUES(6,'2024-03-11',1);
CREATE VIEW copies_sold AS
  SELECT book_id, sum(copies) AS copies FROM sales GROUP BY book_id;
COMMIT;

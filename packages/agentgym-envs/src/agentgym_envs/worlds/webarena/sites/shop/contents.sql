-- What visitors see of rows that tasks change, without time stamps. `store` keeps the initial rows of these views.
CREATE VIEW address_contents AS SELECT account, recipient, street, postcode, town, phone, is_default,
    count(*) AS copies FROM addresses GROUP BY 1, 2, 3, 4, 5, 6, 7;
CREATE VIEW wish_contents AS SELECT account, product, note FROM wish_items;
CREATE VIEW account_contents AS SELECT id, name, first_name, last_name, email, phone, customer_group, active
    FROM accounts;
CREATE VIEW product_contents AS SELECT id, sku, name, brand, category, price, sale_price, stock, colour, material,
    trim(replace(description, char(13), ''), ' ' || char(9) || char(10)) AS description, active FROM products;

-- The store's database, shared by the shop and its administration.
-- Money is in cents. Times are 'YYYY-MM-DD HH:MM', days 'YYYY-MM-DD'.

CREATE TABLE accounts (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    password TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('customer', 'admin')),
    first_name TEXT NOT NULL,
    last_name TEXT NOT NULL,
    email TEXT NOT NULL UNIQUE,
    phone TEXT NOT NULL,
    customer_group TEXT NOT NULL CHECK (customer_group IN ('General', 'Wholesale', 'Retailer', 'Staff')),
    joined TEXT NOT NULL,
    active INTEGER NOT NULL DEFAULT 1
);

CREATE TABLE addresses (
    id INTEGER PRIMARY KEY,
    account INTEGER NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    recipient TEXT NOT NULL,
    street TEXT NOT NULL,
    town TEXT NOT NULL,
    postcode TEXT NOT NULL,
    phone TEXT NOT NULL,
    is_default INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX addresses_account ON addresses (account);

CREATE TABLE departments (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, slug TEXT NOT NULL UNIQUE);

CREATE TABLE categories (
    id INTEGER PRIMARY KEY,
    department INTEGER NOT NULL REFERENCES departments (id),
    name TEXT NOT NULL UNIQUE,
    slug TEXT NOT NULL UNIQUE,
    picture TEXT NOT NULL -- name of a drawing in pictures.py
);

CREATE TABLE products (
    id INTEGER PRIMARY KEY,
    sku TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    brand TEXT NOT NULL,
    category INTEGER NOT NULL REFERENCES categories (id),
    price INTEGER NOT NULL,
    sale_price INTEGER, -- what it costs at present, where that is less
    stock INTEGER NOT NULL,
    colour TEXT NOT NULL,
    material TEXT NOT NULL,
    description TEXT NOT NULL,
    specifications TEXT NOT NULL, -- JSON object, shown after brand, material and colour
    created TEXT NOT NULL,
    active INTEGER NOT NULL DEFAULT 1, -- whether the shop shows it
    sold INTEGER NOT NULL DEFAULT 0, -- pieces in orders that were not cancelled when the data was made
    rating REAL, -- mean of its approved reviews, kept by triggers
    reviews INTEGER NOT NULL DEFAULT 0 -- their number, kept by triggers
);
CREATE INDEX products_category ON products (category);

CREATE TABLE product_options (
    id INTEGER PRIMARY KEY,
    product INTEGER NOT NULL REFERENCES products (id) ON DELETE CASCADE,
    kind TEXT NOT NULL, -- such as 'Size'
    value TEXT NOT NULL, -- such as 'Large'
    extra INTEGER NOT NULL -- cents on top of the product's price
);
CREATE INDEX product_options_product ON product_options (product);

CREATE TABLE reviews (
    id INTEGER PRIMARY KEY,
    product INTEGER NOT NULL REFERENCES products (id) ON DELETE CASCADE,
    account INTEGER REFERENCES accounts (id) ON DELETE SET NULL, -- NULL for a guest
    nickname TEXT NOT NULL,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    stars INTEGER NOT NULL CHECK (stars BETWEEN 1 AND 5),
    created TEXT NOT NULL, -- a day
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('approved', 'pending', 'rejected'))
);
CREATE INDEX reviews_product ON reviews (product);
CREATE INDEX reviews_account ON reviews (account);

CREATE TRIGGER review_added AFTER INSERT ON reviews WHEN NEW.status = 'approved' BEGIN
    UPDATE products SET (rating, reviews) =
        (SELECT avg(stars), count(*) FROM reviews WHERE product = NEW.product AND status = 'approved')
    WHERE id = NEW.product;
END;
CREATE TRIGGER review_changed AFTER UPDATE OF status, stars ON reviews BEGIN
    UPDATE products SET (rating, reviews) =
        (SELECT avg(stars), count(*) FROM reviews WHERE product = NEW.product AND status = 'approved')
    WHERE id = NEW.product;
END;
CREATE TRIGGER review_deleted AFTER DELETE ON reviews BEGIN
    UPDATE products SET (rating, reviews) =
        (SELECT avg(stars), count(*) FROM reviews WHERE product = OLD.product AND status = 'approved')
    WHERE id = OLD.product;
END;

CREATE TABLE orders (
    id INTEGER PRIMARY KEY, -- the order number that customers see
    account INTEGER REFERENCES accounts (id) ON DELETE SET NULL, -- NULL for a guest
    email TEXT NOT NULL,
    recipient TEXT NOT NULL,
    street TEXT NOT NULL,
    town TEXT NOT NULL,
    postcode TEXT NOT NULL,
    phone TEXT NOT NULL,
    status TEXT NOT NULL CHECK (
        status IN ('pending', 'processing', 'on hold', 'shipped', 'complete', 'cancelled', 'returned')
    ),
    placed TEXT NOT NULL,
    shipping_method TEXT NOT NULL,
    shipping INTEGER NOT NULL,
    payment_method TEXT NOT NULL,
    coupon TEXT, -- code of a coupon
    discount INTEGER NOT NULL DEFAULT 0,
    subtotal INTEGER NOT NULL,
    total INTEGER NOT NULL -- subtotal - discount + shipping
);
CREATE INDEX orders_account ON orders (account);
CREATE INDEX orders_placed ON orders (placed);

CREATE TABLE order_items (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL REFERENCES orders (id) ON DELETE CASCADE,
    product INTEGER NOT NULL REFERENCES products (id),
    options TEXT NOT NULL, -- such as 'Size: M, Colour: navy', or nothing
    price INTEGER NOT NULL, -- of one piece
    quantity INTEGER NOT NULL
);
CREATE INDEX order_items_order ON order_items (order_id);
CREATE INDEX order_items_product ON order_items (product);

CREATE TABLE shipments (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL REFERENCES orders (id) ON DELETE CASCADE,
    carrier TEXT NOT NULL,
    tracking TEXT NOT NULL,
    shipped TEXT NOT NULL
);
CREATE INDEX shipments_order ON shipments (order_id);

CREATE TABLE order_comments (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL REFERENCES orders (id) ON DELETE CASCADE,
    author TEXT NOT NULL,
    text TEXT NOT NULL,
    visible INTEGER NOT NULL, -- whether the customer sees it
    created TEXT NOT NULL
);
CREATE INDEX order_comments_order ON order_comments (order_id);

CREATE TABLE returns (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL REFERENCES orders (id) ON DELETE CASCADE,
    reason TEXT NOT NULL,
    comment TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'accepted', 'declined')),
    created TEXT NOT NULL
);
CREATE INDEX returns_order ON returns (order_id);

CREATE TABLE coupons (
    code TEXT PRIMARY KEY,
    description TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('percent', 'amount', 'shipping')),
    value INTEGER NOT NULL, -- percent, or cents; 0 for free shipping
    minimum INTEGER NOT NULL, -- subtotal from which it may be used
    starts TEXT NOT NULL, -- a day
    ends TEXT NOT NULL, -- its last day
    active INTEGER NOT NULL DEFAULT 1,
    uses INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE guests (id INTEGER PRIMARY KEY, coupon TEXT REFERENCES coupons (code) ON DELETE SET NULL);
-- Visitors with a cart who are not signed in. The coupon that a customer has put into the cart is here:
CREATE TABLE cart_coupons (
    account INTEGER PRIMARY KEY REFERENCES accounts (id) ON DELETE CASCADE,
    coupon TEXT NOT NULL REFERENCES coupons (code) ON DELETE CASCADE
);

CREATE TABLE cart_items (
    id INTEGER PRIMARY KEY,
    account INTEGER REFERENCES accounts (id) ON DELETE CASCADE,
    guest INTEGER REFERENCES guests (id) ON DELETE CASCADE,
    product INTEGER NOT NULL REFERENCES products (id) ON DELETE CASCADE,
    options TEXT NOT NULL,
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    CHECK ((account IS NULL) <> (guest IS NULL))
);
CREATE INDEX cart_items_account ON cart_items (account);

CREATE TABLE wish_items (
    id INTEGER PRIMARY KEY,
    account INTEGER NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    product INTEGER NOT NULL REFERENCES products (id) ON DELETE CASCADE,
    note TEXT NOT NULL DEFAULT '',
    added TEXT NOT NULL,
    UNIQUE (account, product)
);

CREATE TABLE compare_items (
    id INTEGER PRIMARY KEY,
    account INTEGER REFERENCES accounts (id) ON DELETE CASCADE,
    guest INTEGER REFERENCES guests (id) ON DELETE CASCADE,
    product INTEGER NOT NULL REFERENCES products (id) ON DELETE CASCADE
);

CREATE TABLE search_terms (
    term TEXT PRIMARY KEY,
    uses INTEGER NOT NULL,
    results INTEGER NOT NULL,
    last_used TEXT NOT NULL -- a day
);

CREATE TABLE newsletter (
    email TEXT PRIMARY KEY,
    account INTEGER REFERENCES accounts (id) ON DELETE SET NULL,
    status TEXT NOT NULL CHECK (status IN ('subscribed', 'unsubscribed')),
    since TEXT NOT NULL -- a day
);

CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    account INTEGER REFERENCES accounts (id) ON DELETE SET NULL,
    name TEXT NOT NULL,
    email TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL,
    created TEXT NOT NULL,
    answered INTEGER NOT NULL DEFAULT 0
);

-- What only the administration writes, from here on.

CREATE TABLE invoices (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL UNIQUE REFERENCES orders (id) ON DELETE CASCADE,
    total INTEGER NOT NULL,
    created TEXT NOT NULL
);

CREATE TABLE refunds (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL UNIQUE REFERENCES orders (id) ON DELETE CASCADE,
    item INTEGER REFERENCES order_items (id) ON DELETE CASCADE, -- NULL for the whole order
    total INTEGER NOT NULL,
    reason TEXT NOT NULL,
    created TEXT NOT NULL
);

CREATE TABLE customer_notes (
    id INTEGER PRIMARY KEY,
    account INTEGER NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    author TEXT NOT NULL,
    text TEXT NOT NULL,
    created TEXT NOT NULL
);
CREATE INDEX customer_notes_account ON customer_notes (account);

CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO settings (name, value) VALUES
    ('store_name', 'Larkspur'),
    ('contact_email', 'hello@larkspur.example'),
    ('contact_phone', '555-0142'),
    ('low_stock', '5');

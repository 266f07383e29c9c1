"""The shop's administration: orders, products, customers, reviews, coupons and reports over the shop's own database."""

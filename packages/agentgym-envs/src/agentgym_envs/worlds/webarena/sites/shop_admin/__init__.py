"""The shop's admin site: orders, products, customers, reviews, coupons and reports on the shop's own database."""

"""What people read: one HTML file, Markdown, and what GitHub shows. Everything is made from records alone."""

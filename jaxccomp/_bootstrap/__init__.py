"""How a process joins the others, what it knows of them, and how it leaves."""

"""The long fault run: thousands of commands while parts are killed, and the account of all of them."""

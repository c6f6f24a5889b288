// What `make lint` checks the scripts of the operator's page with: a name that nobody defines is found here, not by a click.
const js = require("@eslint/js");
const globals = require("globals");

module.exports = [
  js.configs.recommended,
  { languageOptions: { globals: globals.browser } },
];

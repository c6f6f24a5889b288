// Checks AsyncAPI documents with the AsyncAPI project's own parser: node check.cjs FILE...
// Each error and warning is a line "file:line: severity: where: what", and makes the exit code 1.
'use strict';

const { AvroSchemaParser } = require('@asyncapi/avro-schema-parser');
const { Parser, fromFile } = require('@asyncapi/parser');

const SEVERITIES = ['error', 'warning', 'information', 'hint'];
const WARNING = SEVERITIES.indexOf('warning');

async function check(parser, file) {
  const { document, diagnostics } = await fromFile(parser, file).parse();
  const findings = diagnostics.filter((one) => one.severity <= WARNING);
  for (const { severity, path, message, range } of findings) {
    console.error(`${file}:${range.start.line + 1}: ${SEVERITIES[severity]}: ${path.join('.')}: ${message}`);
  }
  if (document === undefined && findings.length === 0) {
    console.error(`${file}: the parser gives no document, and does not say why`);
    return false;
  }
  if (findings.length === 0) {
    const [channels, operations, messages] = [document.channels(), document.operations(), document.allMessages()];
    console.log(
      `${file}: AsyncAPI ${document.version()}, ${channels.length} channels, ${operations.length} operations, ` +
        `${messages.length} messages: no errors, no warnings`,
    );
  }
  return findings.length === 0;
}

async function main(files) {
  if (files.length === 0) {
    throw new Error('expected the path of an AsyncAPI document, got none');
  }
  const parser = new Parser();
  parser.registerSchemaParser(AvroSchemaParser());
  let good = true;
  for (const file of files) {
    good = (await check(parser, file)) && good;
  }
  process.exitCode = good ? 0 : 1;
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`check.cjs: ${error.message}`);
  process.exitCode = 2;
});

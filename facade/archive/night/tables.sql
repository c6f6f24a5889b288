-- The tables of a night: what the report uses of the records of a topic. n is their order, at_us is Kafka's time
-- [Unix us]; a tombstone has a key and no values.

CREATE TABLE night (begin_us BIGINT, end_us BIGINT, slot_us BIGINT, silent_us BIGINT);
CREATE MACRO begin_us() AS (SELECT begin_us FROM night);
CREATE MACRO end_us() AS (SELECT end_us FROM night);
CREATE MACRO slot_us() AS (SELECT slot_us FROM night);
CREATE MACRO moment(at_us) AS strftime(make_timestamp(at_us), '%Y-%m-%d %H:%M:%S.%g UTC');
CREATE MACRO slot_text(at_us) AS strftime(make_timestamp(at_us), '%Y-%m-%d %H:%M UTC');
CREATE MACRO slot_of(at_us) AS (least(greatest(at_us, begin_us()), end_us() - 1) - begin_us()) // slot_us();

CREATE TABLE dead_letters (
    n BIGINT, at_us BIGINT, topic VARCHAR, reason VARCHAR, records BIGINT, example VARCHAR, writer VARCHAR,
    is_mark BOOLEAN);
CREATE TABLE alert_state (
    n BIGINT, at_us BIGINT, key VARCHAR, condition VARCHAR, source VARCHAR, state VARCHAR, raised BIGINT,
    occurrence BIGINT, annunciated BOOLEAN, shelved_until BIGINT, out_of_service BOOLEAN, raised_at BIGINT,
    changed_at BIGINT);
CREATE TABLE commands (
    n BIGINT, at_us BIGINT, id VARCHAR, device VARCHAR, command VARCHAR, issued BIGINT, client VARCHAR, origin VARCHAR,
    parent VARCHAR);
CREATE TABLE command_acks (n BIGINT, at_us BIGINT, id VARCHAR, status VARCHAR, time BIGINT, text VARCHAR);
CREATE TABLE command_refusals (
    n BIGINT, at_us BIGINT, device VARCHAR, command VARCHAR, reason VARCHAR, text VARCHAR, time BIGINT, client VARCHAR,
    origin VARCHAR);
CREATE TABLE tables (
    n BIGINT, at_us BIGINT, key VARCHAR, "table" VARCHAR, product VARCHAR, kind VARCHAR, state VARCHAR, size BIGINT,
    sent_at BIGINT, time BIGINT, reason VARCHAR);
CREATE TABLE quality (n BIGINT, at_us BIGINT, subarray BIGINT, metric VARCHAR, unit VARCHAR);
CREATE TABLE heartbeats (
    n BIGINT, at_us BIGINT, component VARCHAR, role VARCHAR, incarnation VARCHAR, stopping BOOLEAN);
CREATE TABLE alert_actions (
    n BIGINT, at_us BIGINT, action VARCHAR, condition VARCHAR, source VARCHAR, operator VARCHAR, comment VARCHAR,
    time BIGINT);
CREATE TABLE page_acts (
    n BIGINT, at_us BIGINT, act VARCHAR, person VARCHAR, target VARCHAR, text VARCHAR, refused BOOLEAN, time BIGINT);

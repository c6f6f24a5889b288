-- The figures of a night, from the tables in tables.sql when all records are there. Views with headings as columns are
-- tables of the page.

-- Dead letters

CREATE VIEW dead_letter_rows AS
SELECT reason AS "Reason", topic AS "Topic", sum(records) AS "Records", moment(min(at_us)) AS "First",
    moment(max(at_us)) AS "Last", string_agg(DISTINCT writer, ', ' ORDER BY writer) AS "Set aside by",
    coalesce(arg_min(nullif(example, ''), n), '') AS "First example"
FROM dead_letters WHERE NOT is_mark GROUP BY reason, topic ORDER BY sum(records) DESC, topic, reason;

-- Alarms, by EEMUA 191 and ISA-18.2 (IEC 62682). An alarm is a condition and its source. It is annunciated when it is
-- raised, and again when its severity rises or it needs another acknowledgement: the record of a state counts the
-- occurrences, so transitions that were merged into one record count all the same. An alarm that was suppressed by
-- design is annunciated when its cause ends first. States of the days before show the alarms that stand at the begin.

CREATE TABLE alarm_steps AS
WITH states AS (
    SELECT n, at_us, coalesce(condition || '@' || source, key) AS alarm, condition, source,
        coalesce(raised, 0) AS raised, coalesce(occurrence, 0) AS occurrence, annunciated,
        shelved_until > 0 OR out_of_service OR NOT annunciated AS is_hidden,
        coalesce(state IN ('UNACK', 'ACKED'), false) AS is_active,
        least(coalesce(nullif(changed_at, 0), at_us), at_us) AS changed_us, nullif(raised_at, 0) AS raised_us
    FROM alert_state
), steps AS (
    SELECT *, count(condition) OVER earlier = 0 AS is_first, lag(is_active, 1, false) OVER each AS was_active,
        coalesce(lag(raised) OVER each, 0) AS was_raised, coalesce(lag(occurrence) OVER each, 0) AS was_occurrence,
        coalesce(last_value(annunciated IGNORE NULLS) OVER earlier, true) AS was_annunciated,
        CASE WHEN is_first THEN least(changed_us, coalesce(raised_us, changed_us)) ELSE changed_us END AS since_us
    FROM states
    WINDOW each AS (PARTITION BY alarm ORDER BY n),
        earlier AS (PARTITION BY alarm ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT *, CASE
    WHEN condition IS NULL OR (is_first AND since_us < begin_us()) THEN 0  -- earlier occurrences are outside the night
    WHEN (raised, occurrence) = (was_raised, was_occurrence) THEN 0
    WHEN raised > was_raised THEN raised - was_raised
    ELSE raised  -- it was at rest and forgotten in between
    END AS times
FROM steps;

CREATE TABLE annunciations AS
SELECT n, alarm, condition, source, greatest(times, 1) AS times,
    least(greatest(changed_us, begin_us()), end_us() - 1) AS annunciated_us
FROM alarm_steps
WHERE at_us >= begin_us() AND times <= 100000
    AND CASE WHEN times > 0 THEN NOT is_hidden ELSE annunciated AND NOT was_annunciated END;

CREATE VIEW alarm_periods AS  -- 10 minutes each
WITH counts AS (
    SELECT (annunciated_us - begin_us()) // 600_000_000 AS period, sum(times) AS alarms
    FROM annunciations GROUP BY period
), periods AS (SELECT unnest(range((end_us() - begin_us() - 1) // 600_000_000 + 1)) AS period)
SELECT period, begin_us() + period * 600_000_000 AS from_us, coalesce(alarms, 0) AS alarms
FROM periods LEFT JOIN counts USING (period);

CREATE VIEW alarm_slots AS
SELECT slot_text(begin_us() + slot * slot_us()) AS "Slot from", sum(alarms) AS "Alarms",
    max(most) AS "Most in a period of 10 minutes that begins in it"
FROM (
    SELECT slot_of(annunciated_us) AS slot, times AS alarms, 0 AS most FROM annunciations
    UNION ALL SELECT slot_of(from_us), 0, alarms FROM alarm_periods
    UNION ALL SELECT unnest(range(slot_of(end_us()) + 1)), 0, 0
) GROUP BY slot ORDER BY slot;

CREATE VIEW worst AS
SELECT condition AS "Condition", source AS "Source", sum(times) AS "Times",
    percent(sum(times) / (SELECT sum(times) FROM annunciations), 1) AS "Share"
FROM annunciations GROUP BY ALL ORDER BY sum(times) DESC, condition, source LIMIT 10;

CREATE VIEW chattering AS
SELECT condition AS "Condition", source AS "Source", max(of_minute) AS "Most in a minute" FROM (
    SELECT condition, source, sum(times) OVER (
        PARTITION BY alarm ORDER BY annunciated_us RANGE BETWEEN 59_999_999 PRECEDING AND CURRENT ROW) AS of_minute
    FROM annunciations
) GROUP BY condition, source HAVING max(of_minute) >= 3 ORDER BY max(of_minute) DESC, condition, source;

CREATE VIEW stale AS
WITH changes AS (SELECT * FROM alarm_steps WHERE is_active <> was_active), times AS (
    SELECT *, lead(if(condition IS NULL, at_us, changed_us)) OVER (PARTITION BY alarm ORDER BY n) AS next_us,
        coalesce(next_us, end_us()) AS until_us
    FROM changes
)
SELECT condition AS "Condition", source AS "Source", moment(since_us) AS "Active since",
    length_text((until_us - since_us) / 1e6) AS "Active for"
FROM times WHERE is_active AND until_us > begin_us() AND until_us - since_us > 86_400_000_000
QUALIFY row_number() OVER (PARTITION BY alarm ORDER BY n DESC) = 1 ORDER BY since_us, condition, source;

CREATE VIEW alarm_totals AS
SELECT coalesce(sum(alarms), 0) AS annunciated, coalesce(max(alarms), 0) AS most,
    coalesce(sum(alarms), 0) * 600e6 / (end_us() - begin_us()) AS average,
    coalesce(sum(least(600_000_000, end_us() - from_us)) FILTER (alarms > 10), 0) / (end_us() - begin_us())
        AS flood_fraction,
    (SELECT coalesce(sum(times), 0) FROM alarm_steps WHERE times <= 100000 AND at_us >= begin_us() AND is_hidden)
        AS covered,
    (SELECT count(*) FROM alarm_steps WHERE times > 100000) AS refused
FROM alarm_periods;

CREATE VIEW alarm_figures AS
SELECT figure[1] AS "Figure", figure[2] AS "This time", figure[3] AS "Recommended" FROM (SELECT unnest([
    ('Alarms', number(annunciated), ''),
    ('Average in 10 minutes', number(average), 'fewer than 1; at most 2'),
    ('Most in 10 minutes', number(most), 'at most 10'),
    ('Time in flood (more than 10 in 10 minutes)', percent(flood_fraction, 1), 'less than 1 %'),
    ('Stale alarms (active for more than 24 h)', number((SELECT count(*) FROM stale)), 'fewer than 5 a day'),
    ('Chattering alarms (3 or more in a minute)', number((SELECT count(*) FROM chattering)), 'none'),
    ('Share of the ten most frequent alarms',
        percent(coalesce((SELECT sum("Times") FROM worst) / annunciated, 0), 1), 'at most 1 % to 5 %'),
    ('Raised while shelved, suppressed or out of service', number(covered), '')
]) AS figure FROM alarm_totals);

-- Commands: the first final acknowledgement is the outcome. The time of an order is its append time, as its id and its
-- issue time follow from its parent, so that it can be written again.

CREATE TABLE command_lines AS
WITH given AS (
    SELECT n, id, if(parent = '', issued, at_us) AS given_us, command, device,
        CASE WHEN parent <> '' THEN 'order of ' || parent WHEN client <> '' THEN client ELSE origin END AS caller
    FROM commands QUALIFY row_number() OVER (PARTITION BY id ORDER BY n) = 1
), outcomes AS (
    SELECT id, status, time, text FROM command_acks WHERE status NOT IN ('ACCEPTED', 'IN_PROGRESS')
    QUALIFY row_number() OVER (PARTITION BY id ORDER BY n) = 1
)
SELECT n, given_us, command, device, caller, coalesce(status, 'OPEN') AS outcome, (time - given_us) / 1e6 AS seconds,
    coalesce(text, '') AS text
FROM given LEFT JOIN outcomes USING (id)
UNION ALL SELECT n, time, command, device, if(client = '', origin, client), 'REFUSED', 0, reason || ': ' || text
FROM command_refusals;

CREATE VIEW commands_by_outcome AS
SELECT command AS "Command", outcome AS "Outcome", count(*) AS "Commands",
    coalesce(number(median(seconds)), '') AS "Median time [s]", coalesce(number(max(seconds)), '') AS "Longest time [s]"
FROM command_lines GROUP BY command, outcome ORDER BY command, outcome;

CREATE VIEW command_rows AS
SELECT moment(given_us) AS "Given at", command AS "Command", device AS "Device", caller AS "By", outcome AS "Outcome",
    coalesce(number(seconds), '') AS "Time [s]", text AS "Text"
FROM command_lines ORDER BY given_us, outcome = 'REFUSED', n;

-- Comments, of actions about alarms, and of what was commented on the operator's page

CREATE VIEW comments AS
SELECT moment(time) AS "At", person AS "Person", about AS "About", text AS "Comment" FROM (
    SELECT time, n, operator AS person, condition || '@' || source || ', ' || action AS about, comment AS text
    FROM alert_actions WHERE comment <> ''
    UNION ALL SELECT time, n, person, target, text FROM page_acts WHERE act = 'comment' AND NOT refused
) ORDER BY time, n;

-- Tables and quality

CREATE VIEW products AS
WITH reports AS (
    SELECT * REPLACE (coalesce(product, split_part(key, '!', 1)) AS product,
        coalesce("table", substr(key, strpos(key, '!') + 1)) AS "table")
    FROM tables
), ends AS (  -- without those that are announced again
    SELECT * FROM reports WHERE state IN ('COMPLETE', 'FAILED')
    QUALIFY "table" IS DISTINCT FROM lag("table") OVER (PARTITION BY product ORDER BY n)
), ended AS (
    SELECT product, count(*) FILTER (state = 'COMPLETE') AS complete, sum(size) FILTER (state = 'COMPLETE') AS size,
        max(time - sent_at) FILTER (state = 'COMPLETE') AS slowest_us, count(*) FILTER (state = 'FAILED') AS failed,
        arg_max(coalesce(reason, ''), n) FILTER (state = 'FAILED') AS why
    FROM ends GROUP BY product
), known AS (
    SELECT product, arg_min(kind, n) AS kind,
        count(*) FILTER (is_last AND state NOT IN ('COMPLETE', 'FAILED')) AS under_way
    FROM (SELECT *, row_number() OVER (PARTITION BY product, "table" ORDER BY n DESC) = 1 AS is_last FROM reports)
    GROUP BY product HAVING count(state) > 0
)
SELECT product AS "Product", kind AS "Kind", coalesce(complete, 0) AS "Complete",
    coalesce(size, 0) / 1e6 AS "Size [MB]", greatest(coalesce(slowest_us, 0), 0) / 1e6 AS "Longest time [s]",
    coalesce(failed, 0) AS "Failed",
    under_way AS "Not ended", coalesce(why, '') AS "Last failure"
FROM known LEFT JOIN ended USING (product) ORDER BY product;

CREATE VIEW metrics AS
SELECT metric AS "Metric", subarray AS "Subarray", arg_min(unit, n) AS "Unit", count(*) AS "Arrays",
    moment(min(at_us)) AS "First", moment(max(at_us)) AS "Last", coalesce(max(gap_us), 0) / 1e6 AS "Longest gap [s]"
FROM (SELECT *, at_us - lag(at_us) OVER (PARTITION BY subarray, metric ORDER BY n) AS gap_us FROM quality)
GROUP BY subarray, metric ORDER BY subarray, metric;

-- Workers, device servers and controllers. Each start of a component has another incarnation. An orderly end has a
-- final heartbeat; without it the process was killed, or its host was lost. While no component writes any heartbeat,
-- the bus was away, or the archive was not written: the state of all components is unknown.

CREATE TABLE signs AS
WITH turns AS (
    SELECT *, min(n) OVER (PARTITION BY component, incarnation) AS birth,
        max(at_us) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS heard_us
    FROM heartbeats, night
)
SELECT *, birth < max(birth) OVER (PARTITION BY component ORDER BY n) AS is_former,
    at_us - heard_us > silent_us AS is_back,
    coalesce(max(if(is_back, at_us, 0)) OVER (ORDER BY n), 0) AS back_us
FROM turns;

CREATE TABLE beats AS  -- those that may tell something; a replaced process that ends changes nothing
SELECT *, lag(at_us) OVER each AS before_us, row_number() OVER each = 1 AS is_first,
    last_value(if(is_former, NULL, stopping) IGNORE NULLS)
        OVER (each ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS was_stopped,
    last_value(if(is_former, NULL, stopping) IGNORE NULLS) OVER each AS is_stopped,
    row_number() OVER (PARTITION BY component ORDER BY n DESC) = 1 AS is_last
FROM signs WHERE NOT (is_former AND stopping)
WINDOW each AS (PARTITION BY component ORDER BY n)
QUALIFY is_first OR is_last OR is_former OR n = birth OR at_us - before_us > silent_us;

CREATE TABLE events AS
WITH limits AS (SELECT min(at_us) AS first_us, max(at_us) AS last_us, any_value(silent_us) AS silent_us FROM signs)
SELECT heard_us AS at_us, 'all components' AS component, '' AS kind, (at_us - heard_us) / 1e6 AS away, format(
    'no sign of life of any component for {:.1f} s: the bus was away, or the archive was not written', away) AS text
FROM signs WHERE is_back
UNION ALL SELECT at_us, component, '', 0, 'heard for the first time' 
FROM beats, limits WHERE is_first AND at_us - first_us > limits.silent_us
UNION ALL SELECT at_us, component, '', 0, 'two processes give signs of life under this name'
FROM beats WHERE is_former QUALIFY row_number() OVER (PARTITION BY component ORDER BY n) = 1
UNION ALL SELECT at_us, component, if(was_stopped, 'restart', 'unsaid'), (at_us - before_us) / 1e6 AS away, format(
    'restarted {}; away for {:.1f} s',
    if(was_stopped, 'after an orderly end', 'without an orderly end before'), away)
FROM beats WHERE n = birth AND NOT is_first
UNION ALL SELECT before_us, component, 'silence', (at_us - before_us) / 1e6 AS away, format(
    'silent for {:.1f} s; the same process went on', away)
FROM beats, limits WHERE n <> birth AND NOT is_former AND at_us - greatest(before_us, back_us) > limits.silent_us
UNION ALL SELECT at_us, component, '', 0, 'ended in order, and was not started again'
FROM beats WHERE is_last AND is_stopped
UNION ALL SELECT at_us, component, 'silence', (last_us - at_us) / 1e6, 'silent from then until the end'
FROM beats, limits WHERE is_last AND NOT is_stopped AND last_us - at_us > limits.silent_us;

CREATE VIEW interruptions AS
SELECT moment(at_us) AS "At", component AS "Component", text AS "Interruption"
FROM events ORDER BY at_us, component, text;

CREATE VIEW components AS
WITH names AS (SELECT component, arg_min(role, n) AS role FROM heartbeats GROUP BY component)
SELECT component AS "Component", role AS "Role", count(*) FILTER (kind IN ('restart', 'unsaid')) AS "Restarts",
    count(*) FILTER (kind = 'unsaid') AS "Without an orderly end before",
    count(*) FILTER (kind = 'silence') AS "Silences",
    round(coalesce(sum(away) FILTER (kind <> ''), 0), 1) AS "Away or silent [s]"
FROM names LEFT JOIN events USING (component) GROUP BY component, role ORDER BY role, component;

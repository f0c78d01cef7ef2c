// JSON as text. Payloads are shown and copied as they were sent, because JavaScript numbers would
// change 1234567890123456789 to 1234567890123456800, 1.10 to 1.1, and 1E400 to null. All texts here
// must be valid JSON.

/** Return the index after the string that starts at `at`. */
function stringEnd(text, at) {
  for (let end = at + 1; ; end++) {
    end = text.indexOf('"', end);
    let backslash = end;
    while (text[backslash - 1] === "\\") backslash--;
    if ((end - backslash) % 2 === 0) return end + 1;
  }
}

/** Return the index after the value that starts at `at`. */
function valueEnd(text, at) {
  const token = /["[\]{}]|[^\s"[\]{},:]+/g;
  token.lastIndex = at;
  let depth = 0;
  do {
    const { 0: found, index } = token.exec(text);
    if (found === '"') token.lastIndex = stringEnd(text, index);
    else if (found === "[" || found === "{") depth++;
    else if (found === "]" || found === "}") depth--;
  } while (depth);
  return token.lastIndex;
}

/** Parse JSON, but leave each member `data` and `meta` as the exact text of its value. */
export function parseRecords(text) {
  const parts = [];
  let done = 0;
  for (let at = 0; (at = text.indexOf('"', at)) >= 0;) {
    const end = stringEnd(text, at), name = text.slice(at, end);
    at = end;
    if ((name !== '"data"' && name !== '"meta"') || text[end] !== ":") continue;
    at = valueEnd(text, end + 1);
    parts.push(text.slice(done, end + 1), JSON.stringify(text.slice(end + 1, at)));
    done = at;
  }
  return JSON.parse(parts.join("") + text.slice(done));
}

/** Return a record of `parseRecords` as JSON, with `data` and `meta` as they were received. */
export const recordText = (record) => `{${Object.entries(record).map(([name, value]) =>
  `"${name}":${name === "data" || name === "meta" ? value : JSON.stringify(value)}`).join(",")}}`;

/** Put the members and items of a value on lines of their own, up to `most` characters. */
export function indented(text, most) {
  const token = /[[{]\s*[\]}]|["[\]{},:]|[^\s"[\]{},:]+/g;
  let result = "", depth = 0, found;
  const line = (step) => `\n${"  ".repeat(depth += step)}`;
  while (result.length < most && (found = token.exec(text))) {
    const [part] = found;
    if (part === '"') {
      token.lastIndex = stringEnd(text, found.index);
      result += text.slice(found.index, token.lastIndex);
    } else if (part === "[" || part === "{") result += part + line(1);
    else if (part === "]" || part === "}") result += line(-1) + part;
    else if (part === ",") result += part + line(0);
    else result += part === ":" ? ": " : part;
  }
  return result.slice(0, most);
}

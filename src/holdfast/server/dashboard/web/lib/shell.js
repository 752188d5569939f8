// Texts as words and flags of a command line.

// Quoted only if a shell would read it otherwise.
export const quoted = (text) => {
  const word = String(text);
  return /^[\w.:@/=,+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
};

// " --force --delay 10m" of {force: true, delay: "10m"}; empty values are left out.
export const flags = (values) =>
  Object.entries(values)
    .filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false)
    .map(([name, value]) => (value === true ? ` --${name}` : ` --${name} ${quoted(value)}`))
    .join("");

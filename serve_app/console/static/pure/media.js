// The kinds of the results of a job. Events and results describe a file with the same members.

const NAMES = { image: "Picture", video: "Video", audio: "Sound", model: "Model", text: "Text", file: "File" };
const SHOWN = new Set(["image/png", "image/webp", "image/jpeg", "image/gif", "image/avif", "image/bmp"]);

/** Returns the kind of a result. Without a media type it is a PNG. */
export function kindOf({ media_type: type = "image/png" }) {
  const group = type.split("/")[0];
  if (group === "image") return SHOWN.has(type) ? "image" : "file";
  return Object.hasOwn(NAMES, group) ? group : "file";
}

/** Returns the name of a result, such as "Video 1". */
export function nameOf(result) {
  return `${NAMES[kindOf(result)]} ${result.index + 1}`;
}

/** Returns the URL of a picture that stands for the result, or "" if it has none. */
export function thumbnailUrl(result) {
  return (kindOf(result) === "image" ? result.url : result.poster_url) ?? "";
}

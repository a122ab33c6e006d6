// Parses a workflow: the API format, the API format in a member `prompt`, or a file of ComfyUI's editor.

export class NoWorkflow extends Error {}

/** Returns {body, graph} of a text. `graph` is null if only the service can convert the workflow. */
export function parse(text) {
  let content;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw new NoWorkflow(`This is not JSON: ${error.message}`);
  }
  if (!isObject(content)) throw new NoWorkflow("A workflow is a JSON object.");
  if (Array.isArray(content.nodes)) return { body: content, graph: null };
  const graph = isObject(content.prompt) ? content.prompt : content;
  if (!isGraph(graph)) throw new NoWorkflow("This JSON has no nodes with a class_type.");
  return { body: isObject(content.prompt) ? content : { prompt: content }, graph };
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isGraph(graph) {
  const nodes = Object.values(graph);
  return nodes.length > 0 && nodes.every((node) => isObject(node) && typeof node.class_type === "string");
}

/** Returns [{id, type, title, values: [[name, value]], links: [{input, from, output}]}] in the graph's order. */
export function nodesOf(graph) {
  return Object.entries(graph).map(([id, node]) => {
    const inputs = Object.entries(isObject(node.inputs) ? node.inputs : {});
    const isTo = ([, value]) => isLink(value, graph);
    return {
      id,
      type: node.class_type,
      title: typeof node._meta?.title === "string" ? node._meta.title : node.class_type,
      values: inputs.filter((each) => !isTo(each)),
      links: inputs.filter(isTo).map(([input, [from, output]]) => ({ input, from: String(from), output })),
    };
  });
}

function isLink(value, graph) {
  return Array.isArray(value) && value.length === 2 && Number.isInteger(value[1]) && Object.hasOwn(graph, String(value[0]));
}

/** Returns the declaration of an input in a node type of `GET /v1/object_info`; undefined if it has none. */
export function declarationOf(type, name) {
  return type?.input?.required?.[name] ?? type?.input?.optional?.[name];
}

/** Returns the choices of a declared input; null if it has none. */
export function optionsOf(declaration) {
  const options = declaration?.[0] === "COMBO" ? declaration[1]?.options : declaration?.[0];
  return Array.isArray(options) && options.length ? options : null;
}

/** Returns the graph with one changed input of a node. */
export function withInput(graph, id, name, value) {
  const node = graph[id];
  return { ...graph, [id]: { ...node, inputs: { ...node.inputs, [name]: value } } };
}

/** Returns `text` as a value of the same type as `before`; undefined if that is not possible. */
export function typed(text, before) {
  if (typeof before === "string") return text;
  try {
    const value = JSON.parse(text);
    return typeof value === typeof before ? value : undefined;
  } catch {
    return undefined;
  }
}

// openai (JavaScript): sdk_openai.mjs URL CHOICE. What sdk_openai.py does, over the Responses API: the chat dialect is the
// other script's. Prints what it saw as one JSON object.
import OpenAI from 'openai';

const [url, choice] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url + '/v1', apiKey: 'any', maxRetries: 0, timeout: 300000 });
const schema = { type: 'object', properties: { path: { type: 'string', enum: ['note.txt'] } }, required: ['path'], additionalProperties: false };

async function chat(messages, tool_choice) {
  const stream = client.chat.completions.stream({ model: 'local', messages, tool_choice, max_tokens: 60, temperature: 0,
    tools: [{ type: 'function', function: { name: 'read_note', description: 'Reads a note', parameters: schema } }],
    stream_options: { include_usage: true } });
  const r = await stream.finalChatCompletion();
  return { message: r.choices[0].message, cached: r.usage.prompt_tokens_details.cached_tokens };
}

async function respond(input, tool_choice, previous_response_id) {
  const stream = client.responses.stream({ model: 'local', input, tool_choice, previous_response_id, max_output_tokens: 60, temperature: 0,
    tools: [{ type: 'function', name: 'read_note', description: 'Reads a note', parameters: schema, strict: false }] });
  return await stream.finalResponse();
}

const question = 'What does the note say? ' + 'Read it slowly. '.repeat(40);
const messages = [{ role: 'user', content: question }];
const a = await chat(messages, choice);
messages.push(a.message);
for (const c of a.message.tool_calls ?? []) messages.push({ role: 'tool', tool_call_id: c.id, content: 'The tower: 41 metres.' });
const b = await chat(messages, 'auto');
messages.push(b.message, { role: 'user', content: 'And again?' });
const c = await chat(messages, choice);

const first = await respond(question, choice);
const calls = first.output.filter((o) => o.type === 'function_call');
const second = await respond(calls.map((o) => ({ type: 'function_call_output', call_id: o.call_id, output: 'The tower: 41 metres.' })), 'auto', first.id);
const third = await respond('And again?', choice, second.id);
console.log(JSON.stringify({
  calls: [...(a.message.tool_calls ?? []).map((t) => [t.function.name, JSON.parse(t.function.arguments)]), ...calls.map((t) => [t.name, JSON.parse(t.arguments)])],
  answer: b.message.content, answer_responses: second.output_text,
  cached: [a.cached, b.cached, c.cached, ...[first, second, third].map((r) => r.usage.input_tokens_details.cached_tokens)] }));

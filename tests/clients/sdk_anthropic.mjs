// @anthropic-ai/sdk: sdk_anthropic.mjs URL CHOICE. What sdk_anthropic.py does. Prints what it saw as one JSON object.
import Anthropic from '@anthropic-ai/sdk';

const [url, wanted] = process.argv.slice(2);
const choice = { type: wanted === 'required' ? 'any' : 'auto' };
const client = new Anthropic({ baseURL: url, apiKey: 'any', maxRetries: 0, timeout: 300000 });
const tools = [{ name: 'read_note', description: 'Reads a note', input_schema: {
  type: 'object', properties: { path: { type: 'string', enum: ['note.txt'] } }, required: ['path'], additionalProperties: false } }];

const turn = (messages, tool_choice) =>
  client.messages.stream({ model: 'claude-local', max_tokens: 60, messages, tools, tool_choice, temperature: 0 }).finalMessage();

const messages = [{ role: 'user', content: 'What does the note say? ' + 'Read it slowly. '.repeat(40) }];
const first = await turn(messages, choice);
const calls = first.content.filter((b) => b.type === 'tool_use');
messages.push({ role: 'assistant', content: first.content },
  { role: 'user', content: calls.map((c) => ({ type: 'tool_result', tool_use_id: c.id, content: 'The tower: 41 metres.' })) });
const second = await turn(messages, { type: 'auto' });
messages.push({ role: 'assistant', content: second.content }, { role: 'user', content: 'And again?' });
const third = await turn(messages, choice);
console.log(JSON.stringify({ calls: calls.map((c) => [c.name, c.input]),
  answer: second.content.filter((b) => b.type === 'text').map((b) => b.text).join(''),
  cached: [first, second, third].map((m) => m.usage.cache_read_input_tokens) }));

// ai with @ai-sdk/openai-compatible: sdk_ai.mjs URL CHOICE. The package runs the tool itself between two steps; then a second
// turn. Prints what it saw as one JSON object.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { jsonSchema, streamText, tool } from 'ai';

const [url, choice] = process.argv.slice(2);
const model = createOpenAICompatible({ name: 'local', baseURL: url + '/v1', apiKey: 'any', includeUsage: true })('local');
const calls = [], cached = [];
const tools = { read_note: tool({ description: 'Reads a note',
  inputSchema: jsonSchema({ type: 'object', properties: { path: { type: 'string', enum: ['note.txt'] } }, required: ['path'], additionalProperties: false }),
  execute: async (input) => { calls.push(['read_note', input]); return 'The tower: 41 metres.'; } }) };

async function turn(messages) {
  const r = streamText({ model, messages, tools, maxRetries: 0, maxOutputTokens: 60, providerOptions: { local: { parallel_tool_calls: false } }, temperature: 0, onError: ({ error }) => { throw error; },
    stopWhen: ({ steps }) => steps.length === 2, prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? choice : 'auto' }) });
  let text = '';
  for await (const piece of r.textStream) text += piece;
  const steps = await r.steps;
  for (const s of steps) cached.push(s.usage.inputTokenDetails?.cacheReadTokens ?? s.usage.cachedInputTokens);
  return { answer: steps.at(-1).text, text, messages: (await r.response).messages };
}

const question = { role: 'user', content: 'What does the note say? ' + 'Read it slowly. '.repeat(40) };
const first = await turn([question]);
await turn([question, ...first.messages, { role: 'user', content: 'And again?' }]);
console.log(JSON.stringify({ calls, answer: first.answer, cached }));

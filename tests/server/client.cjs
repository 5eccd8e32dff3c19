// What OpenAI's client for Node makes of a server: prints one JSON object. Arguments: URL, key, model.
const OpenAI = require("openai");

async function main([baseURL, apiKey, model]) {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const messages = [{ role: "user", content: "Where to?" }];
  const asked = { model, messages, max_completion_tokens: 9, temperature: 0, ignore_eos: true };
  const models = [];
  for await (const each of client.models.list()) models.push(each.id);
  const whole = await client.chat.completions.create({ ...asked, plan: "streaming(sink=2, recent=9)" });
  let joined = "", usage = null;
  const stream = await client.chat.completions.create({
    ...asked, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    for (const choice of chunk.choices) joined += choice.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  const text = await client.completions.create({ model, prompt: "ab", max_tokens: 5, temperature: 0, logprobs: 2 });
  const errors = {};
  for (const [name, wrong] of Object.entries({ plan: { plan: "nosuch" }, model: { model: "gpt-5" } })) {
    try {
      await client.chat.completions.create({ ...asked, ...wrong });
    } catch (error) {
      errors[name] = [error.constructor.name, error.status, error.code, error.param];
    }
  }
  console.log(JSON.stringify({
    models, whole: whole.choices[0].message.content, plan: whole.usage.winnow.plan, joined, usage,
    text: text.choices[0].text, tokens: text.choices[0].logprobs.tokens.length, errors,
  }));
}

main(process.argv.slice(2)).catch((error) => { console.error(error); process.exit(1); });

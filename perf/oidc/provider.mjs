// A certified OpenID Connect provider (oidc-provider) for router's TestRealProvider. It listens on
// a port of its own choice and prints its issuer. POST /test/keys?sign=b&list=a makes it sign with
// the keys named b, and list those named a too.
import http from 'node:http';
import { generateKeyPairSync } from 'node:crypto';
import Provider from 'oidc-provider';

const made = {};
// keys returns the private keys with these names, an RSA and an EC key each, made at first use.
function keys(names) {
  return names.flatMap((name) => (made[name] ??= [
    ['rsa', { modulusLength: 2048 }, 'RS256'],
    ['ec', { namedCurve: 'P-256' }, 'ES256'],
  ].map(([type, options, alg]) => ({
    ...generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' }), kid: `${name}-${type}`, use: 'sig', alg,
  }))));
}

const groups = { batch: ['guests', 'ml'], stranger: ['guests'], anna: ['ops'] };
const resources = { 'urn:cgn:router': 'RS256', 'urn:cgn:router:ec': 'ES256', 'urn:cgn:other': 'RS256' };

function provider(issuer, names) {
  const client = { client_secret: 'secret', response_types: [], redirect_uris: [], grant_types: ['client_credentials'] };
  return new Provider(issuer, {
    jwks: { keys: keys(names) }, // it signs with the first key that fits
    clients: [
      { ...client, client_id: 'batch' },
      { ...client, client_id: 'stranger' },
      {
        client_id: 'web', client_secret: 'secret', response_types: ['code'], redirect_uris: ['https://app.test/back'],
        grant_types: ['authorization_code'],
      },
    ],
    pkce: { required: () => false },
    cookies: { keys: ['a key for the cookies of a test'] },
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          scope: 'ask', audience: resource, accessTokenFormat: 'jwt', accessTokenTTL: 600,
          jwt: { sign: { alg: resources[resource] } },
        }),
      },
    },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    extraTokenClaims: (_, token) => ({ groups: groups[token.accountId ?? token.clientId], org: 'umbrella' }),
  }).callback();
}

let answer;
const server = http.createServer((request, response) => {
  const url = new URL(request.url, 'http://localhost');
  if (url.pathname === '/test/keys') {
    const sign = url.searchParams.get('sign');
    const list = url.searchParams.get('list').split(',').filter((name) => name !== sign);
    answer = provider(issuer, [sign, ...list]);
    response.end();
    return;
  }
  answer(request, response);
});
let issuer;
server.listen(0, '127.0.0.1', () => {
  issuer = `http://127.0.0.1:${server.address().port}`;
  answer = provider(issuer, ['a']);
  console.log(issuer);
});

"""Small cases for the chat template engine: one template each, rendered with the variables below.

Names starting with "undef" are not defined. A case is only its template text; the expected output (or that it fails)
comes from jinja2, see template_goldens.py.
"""

VARS = {
    "s": "Hello World", "u": "Grüße 橋 🙂", "empty": "", "ws": "  \t padded \n ", "quote": "it's", "dq": 'a"b', "both": "a'b\"c",
    "lines": "one\ntwo\r\nthree\n\nfive\n", "n": 7, "neg": -7, "f": 2.5, "big": 123456789012345678901234567890,
    "fl": [1.0, 0.1, 1e16, 1e-5, 123456789.123, 1e22, -0.0, 1.5e300], "l": [3, 1, 2], "w": ["b", "A", "c", "a"],
    "d": {"zeta": 1, "alpha": [1, 2.0, None, True], "Beta": {"x": "y"}}, "nul": None, "yes": True, "no": False,
    "users": [{"name": "bob", "age": 30, "tags": ["x", "y"]}, {"name": "Al", "age": 25, "tags": []},
              {"name": "cy", "age": 30, "tags": ["z"], "admin": True}],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}],
    "html": "<b>x & 'y' \"z\"</b>", "items_key": {"items": "shadow", "keys": 1, "get": 2},
    "esc": "tab\tnl\nbs\\ nul\u0001 del\u007f nbsp\u00a0 bell\u0007", "mixed": [1, "1", 1.0, True, None, [1], {"a": 1}],
    "digits": "0123456789", "path": "a/b/c.d", "pipe": "a|b|c", "ld": [{"k": "b"}, {"k": "a"}, {"k": "B"}], "pct": "50%",
    "tool": {"name": "f", "description": "if a<b & c>'d' — ü 🙂", "parameters": {"type": "object", "required": [], "n": 1.0}},
}

EXPR = r"""
1 + 2 * 3
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7 / 2
6 / 3
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
2 ** 0.5
1 / 0
1 // 0
1 % 0
1.0 / 0
0 ** -1
9223372036854775807 + 1
big
-big
[big]
big is integer
1e3
1.5e-7
1_000
0x1F
0b101
0o17
1.0
100000000000000000000.0
fl
fl | join(',')
True + True
true
True
none
None
not true
not 0
not ''
1 == 1.0
1 == True
'1' == 1
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2
1 < 2 == 2
'a' < 'b'
'Z' < 'a'
[1, 2] < [1, 3]
(1, 2) == (1, 2)
(1, 2) == [1, 2]
1 < 'a'
none < 1
undef < 1
undef == undef
undef == none
undef != 1
1 in [1, 2]
4 not in [1, 2]
'ell' in s
1 in s
'zeta' in d
'x' in undef
1 in none
undef in [1]
[1] in [[1], 2]
'橋' in u
1 and 2
0 and 2
0 or 'x'
'' or none or 5
not 1 == 2
'a' ~ 1 ~ none ~ true ~ undef ~ 2.0
'a' + 'b'
'a' + 1
1 + 'a'
'a' * 3
3 * 'ab'
'a' * -1
[1] * 3
[1] + [2]
(1,) + (2,)
[1] + (2,)
'a' if true
'a' if false
'a' if false else 'b'
'a' if 0 else 'b' if 0 else 'c'
(1 if 1)
s[0]
s[-1]
s[100]
s[1:]
s[:3]
s[::-1]
s[1:5:2]
s[-3:]
s[:-1]
s[5:2]
s[::0]
u[0]
u[-1]
u[6]
u[6:]
u[::-1]
u[2:5]
u | length
l[0]
l[-1]
l[5]
l[1:]
l[::-1]
l[::2]
l[-2:]
l['a']
l[none]
d.zeta
d['zeta']
d.alpha[1]
d['alpha'][0:2]
d.Beta.x
d.missing
d.missing.deeper
d['missing']
d['missing']['x']
undef
undef.x
undef['x']
undef()
undef + 1
undef ~ 'x'
-undef
undef | length
undef | trim
undef | upper
undef | default('d')
nul | default('d')
nul | default('d', true)
nul | length
nul | trim
nul | upper
nul | list
nul | join
undef | list
undef | join(',')
undef | first
undef | last
undef | int
undef | float
undef | tojson
undef is defined
undef is undefined
d.x is defined
d.x.y is defined
undef[0:1]
nul[0:1]
none.x
nul.x.y
d
l
(1,)
()
(1, 'a', none)
[]
{}
{'a': 1, 'b': [1, (2, 3)]}
{1: 'a', none: 'b', true: 'c', 1.5: 'd', (1, 2): 'e'}
{'a': 1, 'a': 2}
{[1]: 2}
{'a': 1}['a']
{'a': 1}.a
quote
[quote]
[dq]
[both]
[esc]
[u]
['\x00\x1b\u200b\ufeff\U0001F600']
'a\nb\tc\\d\'e"f'
"a'b"
'\q \é \橋'
'\x41\u00e9\101'
'a' 'b' "c"
'line\
cont'
mixed
[1.0, 2.5, 1e100, -0.0]
range(5)
range(5) | list
range(2, 10, 3) | list
range(5, 0, -2) | list
range(0) | list
range(10)[2]
range(10)[2:5]
range(10)[-1]
range(10) | length
3 in range(5)
range(200000)
range(100000) | length
range(1, 2, 0)
range('a')
dict(a=1, b=2)
dict([('a', 1)], b=2)
dict({'a': 1}, a=3)
namespace(a=1)
namespace(a=1).a
namespace(a=1)['a']
namespace(a=1).b
namespace({'a': 5}).a
namespace
''.__class__
''.__class__.__mro__
[].__len__
d.__class__
undef.__class__
''['__class__']
d | attr('__class__')
l.append(1)
l.append
l.append is defined
d.update({'a': 1})
d.pop('zeta')
d.setdefault('q', 1)
d.clear is defined
l.sort()
l.index(1)
l.count(1)
l.index(99)
l.copy()
d.copy()
d.items()
d.items() | list
d.keys() | list
d.keys()
d.values()
d.items() | length
d.get('zeta')
d.get('nope')
d.get('nope', 'dflt')
d.get(['x'])
'zeta' in d.keys()
d | items | list
d | items
nul | items
undef | items | list
items_key.items
items_key['items']
items_key.keys
items_key.get
d | list
d | length
d | first
d | last
d | join(',')
s.upper()
s.lower()
s.title()
s.capitalize()
s.swapcase()
s.casefold()
u.upper()
u.lower()
'ß ŉ ﬁ İ ΑΣ ΑΣΑ'.upper()
'ß ŉ ﬁ İ ΑΣ ΑΣΑ Σ'.lower()
'ǆ ﬁx'.title()
'ßx ÀB'.capitalize()
'Straße'.casefold()
"they're bill's".title()
"they're bill's x-y (z [q"|title
s.split()
s.split('o')
s.split('o', 1)
'  a  b '.split()
'  a  b c '.split(none, 1)
'a,b,,c'.split(',')
''.split()
''.split(',')
s.split('')
s.rsplit('o', 1)
'  a  b c '.rsplit(none, 1)
'a b c'.rsplit()
'a,b,c'.rsplit(',', maxsplit=1)
'a b c'.split(maxsplit=1)
'<think>x</think>y'.split('</think>')[-1]
'<think>x</think>y'.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')
ws.strip()
ws.lstrip()
ws.rstrip()
'xxaxx'.strip('x')
'abcba'.strip('ab')
'abcba'.lstrip('ab')
'\u00a0\u3000a\u2003'.strip()
s.strip(1)
s.strip(none)
s.startswith('He')
s.startswith(('x', 'He'))
s.startswith('lo', 3)
s.startswith(1)
s.endswith('ld')
s.endswith(('x',))
s.endswith('World', 0, 5)
s.find('o')
s.find('o', 5)
s.find('zz')
s.rfind('o')
s.index('zz')
s.rindex('o')
u.find('橋')
s.count('l')
s.count('')
s.count('l', 4)
s.replace('l', 'L')
s.replace('l', 'L', 1)
s.replace('', '-')
''.replace('', '-')
s.replace('l', '')
'aaa'.replace('aa', 'b')
'橋橋'.replace('橋', 'x', 1)
','.join(w)
','.join(l)
','.join('abc')
'-'.join(d)
lines.splitlines()
lines.splitlines(true)
'a\u2028b\x0bc\x85d'.splitlines()
'abc'.removeprefix('a')
'abc'.removesuffix('c')
'abc'.removesuffix('')
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'abc'.rpartition('-')
'abc'.center(10, '*')
'abc'.center(6)
'abcd'.center(7)
'abc'.ljust(5) ~ '|'
'abc'.rjust(5, '0')
'橋'.rjust(3, '橋')
'abc'.rjust(5, 'xy')
'-42'.zfill(6)
'42'.zfill(1)
'a\tb'.expandtabs(4)
'abc'.isalpha()
'ab1'.isalnum()
'123'.isdigit()
'²'.isdigit()
'²'.isdecimal()
'½'.isnumeric()
'一'.isnumeric()
''.isdigit()
' \n'.isspace()
'abc'.islower()
'ABC1'.isupper()
'1'.islower()
'Abc De'.istitle()
'abc'.isidentifier()
'1abc'.isidentifier()
'abc'.isascii()
'é'.isascii()
'a\n'.isprintable()
s.nope
s.nope()
s.upper
s.encode
'{} {}'.format(1, 'a')
'{1} {0}'.format(1, 'a')
'{a} {b[0]} {c.zeta}'.format(a=1, b=[2], c=d)
'{!r}'.format('x')
'{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')
'{:*^7}'.format('ab')
'{:05d} {:+d} {:,} {:x} {:#x} {:b} {:o}'.format(42, 42, 1234567, 255, 255, 5, 8)
'{:.2f} {:8.3f} {:e} {:g} {:%}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.25)
'{:.3}'.format('abcdef')
'{:{}}|'.format('a', 5)
'{{}}'.format()
'{}'.format()
'{'.format(1)
'}'.format(1)
'{x}'.format()
'{0} {}'.format(1, 2)
'{:d}'.format('a')
'{}'.format(none)
'{:>6}'.format(true)
'{}'.format([1, 'a'])
'{0.__class__}'.format(1)
'{a}'.format_map({'a': 5})
'{:_}'.format(1234567)
'{:,.2f}'.format(1234567.891)
'{:010.2f}|{:<10}|{:=+8}'.format(-3.14159, 5, 42)
'%s %d %i' % ('a', 1, 2)
'%s' % 'x'
'%s' % [1]
'%s' % (1,)
'%s' % none
'%s' % undef
'%d' % 3.7
'%d' % '3'
'%5d|%-5d|%05d|%+d|% d' % (42, 42, 42, 42, 42)
'%.2f|%8.3f|%e|%g|%G' % (3.14159, 2.5, 12345.678, 0.0001, 1e20)
'%x %X %o %#x' % (255, 255, 8, 255)
'%c%c' % ('a', 98)
'%r %r' % ('a', 1.0)
'%(a)s %(b)d' % {'a': 'x', 'b': 5}
'%(a)s' % {'b': 1}
'%(a)s' % 5
'%%'  % ()
'100%%' % ()
'%s'
'%s %s' % ('a',)
'a' % 1
'a' % ('x',)
'a' % d
'%*d' % (5, 42)
'%.3s' % 'abcdef'
'%5s|%-5s|' % ('a', 'b')
'%q' % 1
'%' % 1
'%s' | format('x')
'%s-%s' | format('x', 2)
'%(a)s' | format(a=5)
'橋%s橋' % u
n | abs
neg | abs
'a' | abs
s | upper
5 | upper
s | lower
s | capitalize
s | title
s | length
s | count
5 | length
s | first
s | last
s | list
s | reverse
l | reverse
l | reverse | list
s | replace('l', 'L')
s | replace('l', 'L', 1)
s | replace('l')
5 | replace(5, 6)
ws | trim
'xxaxx' | trim('x')
5 | trim
s | center(21) ~ '|'
l | join
l | join(', ')
l | join(d='-')
users | join(', ', attribute='name')
users | join(', ', 'age')
l | sort
l | sort(reverse=true)
w | sort
w | sort(case_sensitive=true)
users | sort(attribute='age') | map(attribute='name') | join
users | sort(attribute='age,name') | map(attribute='name') | join
users | sort(reverse=true, attribute='age') | map(attribute='name') | join
mixed | sort
d | dictsort
d | dictsort(true)
d | dictsort(reverse=true)
{'a': 3, 'b': 1} | dictsort(by='value')
{'a': 3, 'b': 1} | dictsort(false, 'value', true)
undef | dictsort
nul | dictsort
users | map(attribute='name') | list
users | map(attribute='tags.0') | list
users | map(attribute='tags.0', default='none') | list
users | map(attribute='admin', default=false) | list
users | map('length') | list
w | map('upper') | list
w | map('replace', 'a', 'x') | join
w | map('nofilter') | list
w | map
[] | map('nofilter') | list
nul | map('upper') | list
l | select('odd') | list
l | select('>', 1) | list
l | select | list
[0, 1, '', 'a'] | select | list
l | reject('odd') | list
w | reject('in', ['a', 'b']) | list
w | select('in', ['a', 'b']) | list
w | select('equalto', 'A') | list
users | selectattr('admin') | map(attribute='name') | list
users | selectattr('admin', 'defined') | list | length
users | selectattr('age', 'equalto', 30) | map(attribute='name') | join(',')
users | selectattr('age', '==', 30) | list | length
users | rejectattr('age', 'eq', 30) | map(attribute='name') | list
users | rejectattr('admin') | list | length
users | selectattr('name', 'in', ['bob']) | list
users | selectattr('tags') | map(attribute='name') | list
users | selectattr
l | select('nope') | list
users | groupby('age')
users | groupby('age') | map(attribute='list') | list
ld | groupby('k')
ld | groupby('k', case_sensitive=true)
users | groupby('admin', default=false) | list | length
l | sum
users | sum(attribute='age')
[1.5, 2] | sum
[[1], [2]] | sum(start=[])
['a'] | sum
[] | sum
l | min
l | max
w | min
w | max(case_sensitive=true)
users | max(attribute='age')
[] | min
[1, 'a'] | max
w | unique | list
['a', 'A', 'b'] | unique | list
['a', 'A', 'b'] | unique(case_sensitive=true) | list
users | unique(attribute='age') | map(attribute='name') | list
[1, 1.0, true, 2] | unique | list
l | batch(2) | list
l | batch(2, 'x') | list
range(7) | slice(3) | list
range(7) | slice(3, 'x') | list
l | slice(0) | list
3.7 | int
'3.7' | int
'42' | int
'x' | int
'x' | int(5)
'0x1f' | int(base=16)
'1f' | int(0, 16)
'101' | int(base=2)
' 12 ' | int
'1_000' | int
none | int
none | int(7)
[] | int
true | int
'-5' | int
'1e3' | int
'inf' | int
'123456789012345678901234567890' | int
'3.5' | float
'x' | float
'x' | float(1.5)
5 | float
none | float
'nan' | float
'-inf' | float
'1e5' | float
3.14159 | round
3.14159 | round(2)
2.5 | round
3.5 | round
2.675 | round(2)
7 | round
1234 | round(-2)
1250 | round(-2)
3.14159 | round(2, 'ceil')
3.14159 | round(2, 'floor')
3.2 | round(method='ceil')
-3.2 | round(0, 'floor')
7 | round(1, 'ceil')
'a' | round
3.7 | round | int
5 | string
none | string
[1, 'a'] | string
html | e
html | escape
html | forceescape
html | safe
html | e | e
html | e | forceescape
(html | e) + '<'
'<' + (html | safe)
html | e ~ '<'
html | safe is escaped
html is escaped
[html | safe]
html | striptags
'  a  <b>c</b>\n d ' | striptags
{'class': 'x y', 'id': none, 'n': 5, 'q': '"'} | xmlattr
{'a b': 1} | xmlattr
'a b/c?d=é&' | urlencode
{'a b': 'c d', 'e': '/é'} | urlencode
[('a', 1), ('b', 'x y')] | urlencode
s | wordcount
'a b-c d_e' | wordcount
u | wordcount
[] | truncate(5, true, '')
'ab' | truncate(9)
d is filter
lines | indent
lines | indent(2)
lines | indent(2, true)
lines | indent(2, first=true, blank=true)
lines | indent('> ', true, true)
'' | indent(2, true)
'a\n\nb' | indent(2)
nul | indent
undef | indent
'a very long text indeed here' | truncate(10)
'a very long text indeed here' | truncate(10, true)
'a very long text indeed here' | truncate(10, false, '!')
'a very long text' | truncate(14)
'a very long text' | truncate(11, leeway=0)
'abc' | truncate(2)
1000 | filesizeformat
1 | filesizeformat
13000000 | filesizeformat
1024 | filesizeformat(true)
500 | filesizeformat
d | attr('zeta')
d | attr('items')
s | attr('upper')
(d | attr('get'))('zeta')
n is odd
n is even
6 is divisibleby 3
7 is divisibleby(3)
'a' is odd
s is string
n is string
n is number
f is number
yes is number
n is integer
yes is integer
f is float
yes is boolean
n is boolean
yes is true
1 is true
no is false
nul is none
undef is none
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
undef is sequence
range(3) is sequence
l is iterable
n is iterable
undef is iterable
nul is iterable
range is callable
s.upper is callable
n is callable
1 is sameas 1
nul is sameas none
1 is sameas true
l is sameas l
'abc' is lower
'ABC' is upper
5 is lower
1 is eq 1
1 is equalto(1)
1 is ne 2
2 is gt 1
2 is greaterthan 1
1 is lt 2
1 is lessthan 2
2 is ge 2
2 is le 1
1 is in [1, 2]
1 is not in [1, 2]
3 is not none
s is not string
'upper' is filter
'nope' is filter
'odd' is test
'nope' is test
n is defined and n is number
n is defined or undef
n is nope
n | nope
'x' if n is defined else 'y'
d.zeta is defined and d.zeta == 1
not undef is defined
1 is defined is defined
tool | tojson
tool | tojson(indent=4)
tool | tojson(indent=2, sort_keys=true)
tool | tojson(ensure_ascii=true)
tool | tojson(separators=(',', ':'))
tool | tojson(indent=0)
tool | tojson(indent='\t')
tool | tojson(true)
d | tojson
l | tojson
[] | tojson
{} | tojson
[[], {}] | tojson(indent=2)
(1, 2) | tojson
big | tojson
fl | tojson
html | tojson
esc | tojson
none | tojson
true | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
{(1, 2): 3} | tojson
range(3) | tojson
namespace(a=1) | tojson
('nan' | float) | tojson
mixed | tojson
u | tojson
u | tojson(ensure_ascii=true)
'/' | tojson
pct
'a' is string and 'b' or 'c'
[1, 2, 3][1:][0]
(l | sort)[0]
s.split(' ')[0].lower()
users[0].name
users[0]['name']
users.0.name
users[-1].admin
users[1].admin
users[1].admin is defined
users[0].tags | join('+')
l | length > 2
l | length == 3 and 'yes'
'%02d' | format(5)
joiner(', ')
cycler('a', 'b').next()
cycler()
cycler('a', 'b').current
lipsum is defined
raise_exception('boom')
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y')
strftime_now('%A, %B %-d, %Y %H:%M:%S %p %I %j %y %U %W %w %u %V %G %e %D %F %T %R %% %c %x %X')
strftime_now(5)
n.bit_length()
f.is_integer()
(1.0).is_integer()
1.0.is_integer()
[1,2,]
{'a':1,}
dict(a=1,)
s.replace(old='l', new='L')
s.split(sep='o')
range(3, 1) | list
'abc'[1]
'abc'['x']
{'a': {'b': 1}}.a.b
[['a', 1], ['b', 2]] | list
[1, 2] == [1.0, 2.0]
{'a': 1} == {'a': 1.0}
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
'abc' > 'abd'
true and false or true
(true, false) | length
none == none
none is none
5 is string
1 if undef else 2
undef or 'x'
undef and 'x'
not undef
[undef]
{'a': undef}
undef | default
[] | first
[] | last
'' | first
5 | first
[] | join
[none, undef, 1] | join('-')
d.items() | first
(d.items() | list)[0][1]
d.values() | list | length
l | list == l
'x' * 3 ~ 'y'
1 ~ 2 + 3
1 + 2 ~ 3
'a' 'b' ~ 'c'
2 * 3 % 4
10 - 2 - 3
2 + 3 == 5
not 2 + 3 == 6
-1 | abs
(-1) | abs
-n | abs
+n
+'a'
-'a'
- - n
not not n
2.0 // 1
5.0 % 3
5 // 2.0
-5 // 2.0
1e308 * 10
7 * 1.0
10 ** 2
2.0 ** 3
1 .real
d ['zeta']
s . upper ()
l[0:2, 1]
l[0, 1]
{}.get('a', 'b')
'a' in ('a', 'b')
() | length
(1) | string
((1, 2), 3)
[[1, [2, [3]]]]
l|map('string')|join('')
l | map('add', 1)
[1, 2, 3] | map('multiply', 2)
'a'.join(['x'])
''.join([])
'%s' % ('%s' % 'a')
'ab' | batch(1) | list
l | tojson | length
(l | map('string') | list)[0]
(l | map('string'))[0]
l | map('string') | length
l | select('odd') | first
users | map(attribute='name') | first
users | map(attribute='name') | last
(l | select('odd')) is iterable
(l | select('odd')) is defined
users | length
users | first | tojson
-1 in l
not 1 in l
1 not in l and 2 in l
'a\\nb'
'a\u00e9b'.upper()
'\u0130'.lower()
u.split(' ')
u | replace('橋', '桥')
u.encode
u[1:3] ~ u[-2:]
u.center(15, '·')
u | tojson | replace('"', '')
"x" ~ ('a', 'b')
'x' ~ {'a': 'b'}
'x' ~ [1.5, none, true]
'x' ~ range(3)
l is sequence and l is not string
d is mapping and d is not string
content is defined
messages
messages | length
tools is none
tools is defined
documents is none
add_generation_prompt
""".strip("\n")

STMT = [
    # white space control
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc",
    "  {% if true %}x{% endif %}  y",
    "a {%- if true -%} b {%- endif -%} c",
    "a {%+ if true +%}\n b {%+ endif +%}\n c",
    "a\n   {%+ if true %}b{% endif %}",
    "{{ 1 }}\n{{ 2 }}\n",
    "{{- 1 -}}\n  {{- 2 -}}  \n",
    " {{- 1 }} {{ 2 -}} \n x",
    "a\n\n\n{%- set x = 1 -%}\n\n\nb",
    "{# c #}\nx{# c -#}\n\n y {#- c #} z {#+ d +#}\n w",
    "   {# c #}   x",
    "a\n   {# multi\nline #}\nb",
    "a\r\nb\rc\r\n",
    "x\n\n",
    "",
    "\n",
    "{{ 'a\r\nb' }}",
    "{% raw %}{{ x }} {% if %} {# #}{% endraw %}",
    "{% raw %}\n a \n{% endraw %}\n b",
    "a {%- raw -%} x {%- endraw -%} b",
    "a\n  {% raw %}\n  x\n  {% endraw %}\nb",
    "{{ '{{' }} {{ \"%}\" }} {{ '}}' }}",
    "{{ {'a': {'b': 1}}}}",
    "{{ {'a': {}}|tojson }}",
    "{%if true%}a{%endif%}",
    "{%-if true-%} a {%-endif-%}",
    "{{1}}{{-1}}{{+1}}",
    "{{ -1 }} {{- -1 }}",
    "\u00a0{% if true %}x{% endif %}",
    "x\u2003{%- if true %}y{% endif %}",
    "{% if true %}\n\nx{% endif %}",
    "{% if true %}  \nx{% endif %}",
    "<{{ undef }}>",
    # if
    "{% if n == 7 %}a{% elif n == 8 %}b{% else %}c{% endif %}",
    "{% if n == 8 %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if n == 9 %}a{% elif n == 8 %}b{% elif n == 6 %}q{% else %}c{% endif %}",
    "{% if n %}{% if undef %}x{% else %}y{% endif %}{% endif %}",
    "{% if n is defined and n %}x{% endif %}",
    "{% if n: %}x{% endif %}",
    "{% if (1, 0) %}x{% endif %}",
    "{% if false, %}x{% endif %}",
    "{% if true %}{{ n|nope }}{% endif %}",
    "{% if false %}{{ n|nope }}{% endif %}",
    "{% if false %}{% for x in l %}{{ n|nope }}{% endfor %}{% endif %}",
    "{{ (n|nope) if false else 'ok' }}",
    "{{ 1 if n is nope else 2 }}",
    "{% for x in [] %}{{ x|nope }}{% endfor %}",
    # for
    "{% for x in l %}{{ x }},{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in undef %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in nul %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in 5 %}{{ x }}{% endfor %}",
    "{% for c in 'a橋c' %}[{{ c }}]{% endfor %}",
    "{% for k in d %}{{ k }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2), (3,)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in l %}{{ a }}{% endfor %}",
    "{% for a, b in ['xy', 'zw'] %}{{ b }}{{ a }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.index }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in [1, 2] %}{{ loop.changed() }} {% endfor %}",
    "{% for x in l %}{{ loop }}{% endfor %}",
    "{% for x in l %}{{ loop.nope }}|{% endfor %}",
    "{{ loop }}",
    "{{ loop is defined }}",
    "{% for x in l %}{% endfor %}{{ loop is defined }}{{ x is defined }}",
    "{% for x in l %}{% for y in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in [1, 2] %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in tree recursive %}{{ x.v }}{% if x.c %}({{ loop(x.c) }}){% endif %}{{ loop.depth }} {% endfor %}",
    "{% for x in tree %}{{ loop(x.c) }}{% endfor %}",
    "{% for x in tree recursive %}{{ x.v }}{{ loop(x.c) }}{% else %}-{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% break %}{% else %}none{% endfor %}",
    "{% for x in l %}{% continue %}{% else %}none{% endfor %}",
    "{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{% else %}none{% endfor %}",
    "{% for i in l %}{% set f = 1 %}{% macro m() %}{{ i }}{{ f }}{% endmacro %}{% if loop.first %}{{ m() }}{% endif %}{% endfor %}",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% break %}",
    "{% for x in l %}{% endfor %}{% continue %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}",
    "{% for x in l|reverse %}{{ x }}{% endfor %}",
    "{% for x in l[::-1] %}{{ x }}{{ loop.length }}{% endfor %}",
    "{% for x in l|select('odd') %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% set g = l|select('odd') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% else %}empty{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for x in l if not ns.stop %}{{ x }}{% if x == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for x in l if x != 2 if true %}{{ x }}{% endfor %}",
    "{% for x in (l if yes else []) %}{{ x }}{% endfor %}",
    "{% for user in users if user.admin is defined and user.admin %}{{ user.name }}{% endfor %}",
    "{% for loop in l %}{{ loop }}{% endfor %}",
    # set and scopes
    "{% set x = 1 %}{{ x }}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }}",
    "{% set (x, y) = (1, 2) %}{{ x }}{{ y }}",
    "{% set x = 1, 2 %}{{ x }}",
    "{% set x, y = [1] %}{{ x }}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]",
    "{% set x | upper %}a{{ n }}b{% endset %}[{{ x }}]",
    "{% set x | replace('a', 'z') | upper %}abc{% endset %}[{{ x }}]",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}",
    "{% for i in l %}{{ x }}{% set x = i %}{% endfor %}",
    "{% set x = 9 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }} {% endfor %}",
    "{% if true %}{% set x = 1 %}{% endif %}{{ x }}",
    "{% if false %}{% set x = 1 %}{% endif %}{{ x }}|{{ x is defined }}",
    "{% if false %}{% set n = 1 %}{% endif %}{{ n }}",
    "{{ n }}{% set n = 1 %}{{ n }}",
    "{% set n = n + 1 %}{{ n }}",
    "{% for i in l %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}",
    "{% for i in l %}{% for j in [1] %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% set n = 'z' %}{% endif %}{{ n }}{% endfor %}",
    "{% macro m() %}{{ n }}{% endmacro %}{{ m() }}{% set n = 3 %}{{ m() }}",
    "{% macro m() %}{{ q }}{% endmacro %}{% set q = 3 %}{{ m() }}",
    "{% macro m() %}{% set n = 5 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}",
    "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = [ns.a] %}{{ ns.a }}{{ ns.b }}{{ ns.c }}|{{ ns }}",
    "{% set d.x = 1 %}",
    "{% set undef.x = 1 %}",
    "{% set ns = namespace(x='') %}{% set ns.x %}block{% endset %}{{ ns.x }}",
    "{% set ns = namespace(a=1) %}{% set ns.a, z = 5, 6 %}{{ ns.a }}{{ z }}",
    "{% set 1 = 2 %}",
    "{% set true = 2 %}",
    "{% set l[0] = 2 %}",
    "{% set x = undef %}{{ x is defined }}",
    "{% set x = none %}{{ x is defined }}{{ x is none }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% set range = 5 %}{{ range }}",
    "{% set messages = l %}{{ messages }}",
    "{% set x = [] %}{% set x = x + [1] %}{% set x = x + [2] %}{{ x }}",
    "{% set loop_messages = messages %}{{ loop_messages|length }}",
    # macros
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(c=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m() %}{{ varargs|join(',') }}{% endmacro %}{{ m(*l) }}",
    "{% macro m() %}{{ kwargs|tojson }}{% endmacro %}{{ m(**{'a': 1}) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a, b=undef) %}{{ a }}{{ b is defined }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}x{% endmacro %}{{ m() | upper }}{{ m }}",
    "{% macro m(a, a) %}{% endmacro %}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body {{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=3) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% call n %}x{% endcall %}",
    "{% macro m(x) %}\n  {{ x }}\n{% endmacro %}\n{{ m('a') }}\n{{ m('b') }}",
    "{% macro m(x) -%}\n  {{ x }}\n{%- endmacro -%}\n{{ m('a') }}\n{{ m('b') }}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% macro m(x) %}{% for i in x %}{{ loop.index }}{% endfor %}{% endmacro %}{{ m(l) }}",
    "{% macro m() %}{{ loop.index }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}",
    "{% macro m(caller) %}{{ caller }}{% endmacro %}{{ m(1) }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ l | map('string') | join }}{{ m(m(1)) }}",
    "{{ m.name }}{% macro m() %}{% endmacro %}",
    "{% macro m() %}{% endmacro %}{{ m.name }}",
    # filter blocks, blocks, generation, joiner, cycler, print
    "{% filter upper %}abc {{ n }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}abca{% endfilter %}",
    "{% filter trim %}\n x \n{% endfilter %}",
    "{% set x = 1 %}{% filter upper %}{% set x = 2 %}a{{ x }}{% endfilter %}{{ x }}",
    "{% block a %}x{{ n }}{% endblock %}",
    "{% block a %}x{% endblock a %}",
    "{% generation %}abc{{ n }}{% endgeneration %}",
    "{% for x in l %}{% generation %}{{ x }}{% set q = 1 %}{% endgeneration %}{{ q }}{% endfor %}",
    "{% for x in l %}\n  {%- generation -%} {{ x }} {%- endgeneration -%}\n{% endfor %}",
    "{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{% for x in l %}{{ c.next() }}{{ c.current }}{% endfor %}{% set _ = c.reset() %}{{ c.next() }}",
    "{% print 'a', n %}",
    "{% do l.append(1) %}",
    "{% set _ = l.append(1) %}",
    # errors at compile time
    "{% nope %}",
    "{% if true %}",
    "{% for x in l %}{% endif %}",
    "{% endif %}",
    "{{ ",
    "{{ 1",
    "{{ }}",
    "{% %}",
    "{% if %}x{% endif %}",
    "{{ 1 + }}",
    "{{ (1 }}",
    "{{ 1) }}",
    "{{ [1 }}",
    "{{ 'abc }}",
    "{# abc",
    "{% raw %} abc",
    "{{ a b }}",
    "{{ a.1b }}",
    "{{ a. }}",
    "{{ a | }}",
    "{{ a is }}",
    "{{ f(a=1, 2) }}",
    "{{ f(**d, *l) }}",
    "{{ f(*l, 1) }}",
    "{{ f(**d, a=1) }}",
    "{{ $ }}",
    "{{ a ? b }}",
    "{{ a ! b }}",
    "{{ 1 = 2 }}",
    "{% set x %}",
    "{% set x = %}",
    "{% for x l %}{% endfor %}",
    "{% for in l %}{% endfor %}",
    "{% macro %}{% endmacro %}",
    "{% macro m %}{% endmacro %}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% from 'x' import y %}",
    "{{ x.y.z }",
    "{{ '\\x4' }}",
    "}} %} #}",
    "{ { % # }",
    "{{ 1 }}}",
    "{%}",
    "{{ {1: 2}[1] }}",
    "{{ 5 if }}",
    "{{ not }}",
    "{{ 1 not 2 }}",
    "{{ a not in }}",
    "{{ l[ }}",
    "{{ l[] }}",
    "{{ l[:] }}",
    "{{ l[::] }}",
    "{{ l[1:2:3:4] }}",
    # shapes of published templates
    "{%- set loop_messages = messages[1:] if messages and messages[0].role == 'system' else messages -%}{{ loop_messages }}",
    "{%- if tools is not none and tools|length > 0 %}T{% else %}none{% endif %}",
    "{%- if not add_generation_prompt is defined %}{%- set add_generation_prompt = false %}{%- endif %}{{ add_generation_prompt }}",
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}{{ date_string }}",
    "{%- for k, v in tool.parameters|items %}{{ k }}: {{ v if v is string else v|tojson }}\n{%- endfor %}",
    "{%- macro render_extra(obj, keys) -%}{%- for k in obj.keys() if k not in keys %}{{ '\\n<' ~ k ~ '>' }}{{ obj[k] | string if obj[k] is not mapping else obj[k] | tojson | safe }}{%- endfor -%}{%- endmacro -%}{{ render_extra(tool, ['name']) }}",
    "{%- for m in [{'role': 'user'}, {'role': 'user'}] %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{{ m.role }}{% endfor %}",
    "{{ raise_exception('a ' ~ n) }}",
    "{{ raise_exception() }}",
    "{%- set ns = namespace(multi_step_tool=true, last_query_index=users|length - 1) %}{%- for u in users[::-1] %}{%- set index = (users|length - 1) - loop.index0 %}{%- if ns.multi_step_tool and u.name == 'Al' %}{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}{{ ns.last_query_index }}",
]


def cases():
    """(name, template) in a fixed order."""
    out = []
    lines = EXPR.split("\n")
    i = 0
    while i < len(lines):
        text = lines[i]
        while text.endswith("\\") and not text.endswith("\\\\"):
            i += 1
            text += "\n" + lines[i]
        out.append((f"expr-{len(out):03d}", "{{ " + text + " }}"))
        i += 1
    first = len(out)
    for t in STMT:
        out.append((f"stmt-{len(out) - first:03d}", t))
    return out

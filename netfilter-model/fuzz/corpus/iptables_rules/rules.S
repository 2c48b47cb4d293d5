root@node:~# iptables -t nat -S
-P PREROUTING ACCEPT -c 5 300
-N A
-A PREROUTING -d 10.0.0.1/32 -c 1 60 -j A
-A A -j DNAT --to-destination 10.0.0.2
$ iptables -A INPUT -p tcp ! --dport 22 -j DROP
iptables -t filter -I INPUT 1 -i lo -j ACCEPT

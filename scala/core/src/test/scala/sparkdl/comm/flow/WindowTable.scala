package sparkdl.comm.flow

/**
 * Prints what share of a link's goodput with the best fixed window a window reaches that follows the link, and how long
 * chunks queue for it. Goodput of virtual seconds after the first ones, with a new search of the base latency among
 * them.
 */
object WindowTable {
  final case class Row(goodput: Double, queueMillis: Double, window: Long, chunk: Int)

  def measure(rate: Double, roundTrip: Long, senders: Int, seconds: Double, window: () => Window): Row = {
    val network = new Network(rate, roundTrip, senders)
    val receiver = network.receiver(new TransferScheduler(Policy.Urgent, window))
    receiver.wantAlways(network.names, 256 << 20)
    network.goodput(receiver, math.min(seconds / 4, 2))
    receiver.meanLatency()
    val goodput = network.goodput(receiver, seconds)
    val chunk = receiver.scheduler.chunk
    val packet = if (rate > 5e8) 64 << 10 else 16 << 10
    val alone = roundTrip + (chunk + packet) / rate * 1e9 + chunk / 20e9 * 1e9
    Row(goodput, (receiver.meanLatency() - alone) / 1e6, receiver.scheduler.window, chunk)
  }

  def main(arguments: Array[String]): Unit = {
    val columns = "Mbit/s, round trip ms, senders, best fixed KiB, its queue ms, own KiB, chunk KiB, queue ms, ratio"
    println(columns.split(", ").mkString("| ", " | ", " |"))
    println("|---|---|---|---|---|---|---|---|---|")
    val rates = if (arguments.isEmpty) Seq(10, 50, 200, 1000, 20000) else arguments.toSeq.map(_.toInt)
    for (mbits <- rates; roundTrip <- Seq(0.2, 20.0); senders <- Seq(1, 8)) {
      val rate = mbits * 1e6 / 8
      val nanos = (roundTrip * 1e6).toLong
      val seconds = if (mbits > 1000) 2.0 else if (mbits == 1000) 6.0 else 22.0
      val own = measure(rate, nanos, senders, if (mbits > 1000) 11 else 22, () => new DelayWindow)
      val product = rate * roundTrip / 1e3
      val sizes = Iterator.iterate(128L << 10)(size => size * 3 / 2).takeWhile(_ < 6 * product + (2 << 20)).toSeq
      val fixed = sizes.map(size => size -> measure(rate, nanos, senders, seconds, () => new FixedWindow(size)))
      val most = fixed.map(_._2.goodput).max
      val (size, best) = fixed.find(_._2.goodput >= 0.999 * most).get
      println(
        f"| $mbits | $roundTrip | $senders | ${size >> 10} | ${best.queueMillis}%.1f | ${own.window >> 10} " +
          f"| ${own.chunk >> 10} | ${own.queueMillis}%.1f | ${own.goodput / most}%.4f |"
      )
    }
  }
}

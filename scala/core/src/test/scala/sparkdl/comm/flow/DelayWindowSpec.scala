package sparkdl.comm.flow

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

/** What a window makes of simulated links. Rates are bytes per second. */
class DelayWindowSpec extends AnyFunSuite {
  private val Mega = 1e6
  private val Milli = 1000L * 1000

  private def megabits(count: Double): Double = count * Mega / 8

  test("of whatever link, it leaves nothing unused, and little queue") {
    for (mbits <- Seq(10, 50, 200, 1000, 20000); roundTrip <- Seq(200000L, 20 * Milli); senders <- Seq(1, 8)) {
      val rate = megabits(mbits)
      val row = WindowTable.measure(rate, roundTrip, senders, if (mbits > 1000) 3 else 4, () => new DelayWindow)
      withClue(s"$mbits Mbit/s, $roundTrip ns, $senders senders: $row: ") {
        assert(row.goodput > 0.97 * rate)
        assert(row.queueMillis < 8 + (2 + senders) * row.chunk / rate * 1e3)
      }
    }
  }

  test("64 MiB of a server in the same machine are here nearly as soon as they can be") {
    val network = new Network(4e9, 60000, 1)
    val receiver = network.receiver()
    receiver.want(new Wanted("x", network.names.head, 64 << 20, Urgency(0, 0), 0))
    network.simulation.run(1000 * Milli, receiver.completed.nonEmpty)
    assert(network.simulation.now / 1e9 < 1.1 * (64 << 20) / 4e9)
  }

  test("a link whose rate changes is used, and its queue goes away again") {
    for (senders <- Seq(1, 4); roundTrip <- Seq(200000L, 20 * Milli); rates <- Seq((200, 20), (20, 200), (1000, 50))) {
      val (before, after) = (megabits(rates._1), megabits(rates._2))
      val network = new Network(math.max(before, after), roundTrip, senders)
      val receiver = network.receiver()
      receiver.downlink.rate = before
      receiver.wantAlways(network.names, 64 << 20)
      assert(network.goodput(receiver, 3) > 0.9 * before)
      receiver.downlink.rate = after
      withClue(s"$rates Mbit/s, $roundTrip ns, $senders senders: ") {
        assert(network.goodput(receiver, 2) > 0.85 * after)
        receiver.meanLatency()
        assert(network.goodput(receiver, 2) > 0.9 * after)
        assert(receiver.meanLatency() < 3 * roundTrip + 5 * (receiver.scheduler.chunk / after * 1e9) + 10 * Milli)
      }
    }
  }

  test("a path that becomes longer is believed in the end") {
    val network = new Network(megabits(1000), Milli, 1)
    val receiver = network.receiver()
    receiver.wantAlways(network.names, 64 << 20)
    network.goodput(receiver, 1)
    network.requestLatency = 30 * Milli
    network.goodput(receiver, 25)
    assert(network.goodput(receiver, 5) > 0.9 * megabits(1000))
  }

  test("one sender that is slow itself neither shrinks the window of the others nor fills it") {
    for (mbits <- Seq(50, 200, 1000); roundTrip <- Seq(200000L, 20 * Milli); uplink <- Seq(true, false)) {
      val rate = megabits(mbits)
      val network = new Network(rate, roundTrip, 4)
      val slow = network.senders(network.names.head)
      (if (uplink) slow.uplink else slow.processor).rate = rate / 50
      val receiver = network.receiver()
      receiver.wantAlways(network.names, 64 << 20)
      network.goodput(receiver, 3)
      withClue(s"$mbits Mbit/s, $roundTrip ns, uplink $uplink: ") {
        assert(network.goodput(receiver, 22) > 0.93 * rate)
      }
    }
  }

  test("after a time in which only a slow sender was wanted, the others find room at once") {
    val rate = megabits(200)
    val network = new Network(rate, Milli, 4)
    network.senders(network.names.head).uplink.rate = rate / 50
    val receiver = network.receiver()
    receiver.wantAlways(network.names.take(1), 1 << 20, more = false)
    network.goodput(receiver, 2)
    receiver.wantAlways(network.names.tail, 4 << 20)
    assert(network.goodput(receiver, 1) > 0.8 * rate)
  }

  test("what is urgent waits for no more than what was in flight") {
    val rate = megabits(200)
    val network = new Network(rate, 200000, 4)
    val receiver = network.receiver()
    receiver.wantAlways(network.names, 64 << 20)
    network.goodput(receiver, 2)
    val begun = network.simulation.now
    val urgent = new Wanted("urgent", network.names.last, 64 << 10, Urgency(-1, 0), 0)
    receiver.want(urgent)
    network.simulation.run(begun + 1000 * Milli, receiver.completed.contains(urgent))
    assert(network.simulation.now - begun < (400 << 10) / rate * 1e9)
  }

  test("receivers that share their senders use most of all links, and none of them goes very short") {
    (1 to 20).foreach { seed =>
      withClue(s"seed $seed: ") {
        val random = new Random(seed)
        val count = 3 + random.nextInt(6)
        val rate = megabits(Seq(50, 200, 1000)(random.nextInt(3)))
        val network = new Network(rate, 200000L + random.nextInt(2) * 5 * Milli, count)
        val receivers = network.names.indices.map { rank =>
          val receiver = network.receiver()
          // From the one after its own rank on.
          val others = (1 until count).map(turn => network.names((rank + turn) % count))
          network.simulation.after(random.nextInt(20) * Milli)(receiver.wantAlways(others, 1 << 20))
          receiver
        }
        network.goodput(receivers.head, 1)
        val before = receivers.map(_.received)
        network.goodput(receivers.head, 3)
        val goodputs = receivers.zip(before).map { case (receiver, begin) => (receiver.received - begin) / 3 }
        assert(goodputs.sum > 0.85 * rate * count)
        assert(goodputs.min > 0.65 * rate)
      }
    }
  }

  test("whatever is slow and whenever it is wanted, all blocks come") {
    (1 to 200).foreach { seed =>
      withClue(s"seed $seed: ") {
        val random = new Random(seed)
        val rate = megabits(Seq(10, 100, 1000, 20000)(random.nextInt(4)))
        val network = new Network(rate, 100000L + random.nextInt(200) * Milli / 10, 1 + random.nextInt(8))
        network.senders.values.foreach { sender =>
          if (random.nextInt(3) == 0) sender.uplink.rate = rate / (1 + random.nextInt(50))
          if (random.nextInt(3) == 0) sender.processor.rate = rate / (1 + random.nextInt(10))
        }
        val receivers = Seq.fill(1 + random.nextInt(4))(network.receiver())
        val wanted = mutable.Map.empty[Receiver, Int].withDefaultValue(0)
        (1 to 40).foreach { _ =>
          val receiver = receivers(random.nextInt(receivers.size))
          val turn = random.nextInt(network.names.size)
          val bytes = 1 + (random.nextDouble() * rate / 20).toLong
          wanted(receiver) += 1
          network.simulation.after((random.nextDouble() * 1e9).toLong) {
            receiver.want(
              new Wanted("x", network.names(turn), bytes, Urgency(random.nextInt(2), random.nextInt(9)), turn)
            )
          }
        }
        network.simulation.run(1000000 * Milli)
        receivers.foreach { receiver =>
          assert(receiver.completed.size === wanted(receiver))
          assert(receiver.scheduler.inFlight === 0 && receiver.scheduler.wakeAt(network.simulation.now).isEmpty)
        }
      }
    }
  }
}

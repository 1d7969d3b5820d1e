// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.flow

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.Seeds

/** Tests of executors that send each other messages and blocks of many sizes. */
class UplinkSpec extends AnyFunSuite {
  private val Milli = 1000L * 1000

  /** Return the links with each of the values: (Mbit/s, round trip in ns, value). */
  private def linksAnd(values: Seq[Int]): Seq[(Int, Long, Int)] = for {
    mbits <- Seq(10, 27, 200, 1000)
    roundTrip <- Seq(200000L, 20 * Milli)
    value <- values
  } yield (mbits, roundTrip, value)

  test("one sender uses most of any link, and an urgent message waits little") {
    val largest = 60000
    for ((mbits, roundTrip, peers) <- Seeds.some(linksAnd(Seq(1, 7)), step = 5)) {
      val star = new Star(mbits * 1e6 / 8, roundTrip, peers + 1)
      val random = new Random(1)
      var number = 0
      def another(to: Int): Unit = {
        number += 1
        star.send(0, to, 100 + random.nextInt(largest), Urgency(1, number))(another(to))
      }
      for (to <- 1 to peers; _ <- 1 to 200) another(to)
      star.received(3)
      val received = star.received(4)
      val begun = star.simulation.now
      var took = 0L
      star.send(0, 1, 1000, Urgency(0, 0)) { took = star.simulation.now - begun }
      star.received(2)
      withClue(s"$mbits Mbit/s, $roundTrip ns, $peers peers: ") {
        assert(received > 0.93 * 4 * star.rate)
        assert(took < roundTrip + 10 * Milli + 2.5 * largest / star.rate * 1e9)
      }
    }
  }

  test("all-to-all traffic, bucket by bucket, uses most of the links") {
    val (executors, ahead) = (8, 30)
    val slow = linksAnd(Seq(3000, 13000, 40000)).filter(_._1 < 1000)
    for ((mbits, roundTrip, mean) <- Seeds.some(slow, step = 8)) {
      val star = new Star(mbits * 1e6 / 8, roundTrip, executors)
      val random = new Random(1)
      val missing = mutable.ArrayBuffer.empty[Int]
      var complete = 0
      def offer(): Unit = {
        val bucket = missing.size
        val bytes = (mean * (0.4 + 1.2 * random.nextDouble())).toInt
        missing += executors * (executors - 1)
        for (from <- 0 until executors)
          star.simulation.after((random.nextDouble() * 2 * Milli).toLong) {
            for (to <- 0 until executors if to != from)
              star.send(from, to, bytes, Urgency(1, bucket)) {
                missing(bucket) -= 1
                while (complete < missing.size && missing(complete) == 0) complete += 1
                while (missing.size < complete + ahead) offer()
              }
          }
      }
      (1 to ahead).foreach(_ => offer())
      star.received(2)
      val received = star.received(2)
      withClue(s"$mbits Mbit/s, $roundTrip ns, messages of $mean bytes: ") {
        assert(received > 0.88 * 2 * star.rate * executors)
      }
    }
  }

  test("small messages count as larger ones in the window") {
    val window = new UplinkWindow
    val message = 1600
    var now = 0L
    // shows the latency of the path
    window.recordArrival(window.send(message, now), 0, now + Milli, 0)
    for (_ <- 1 to 100) {
      val flights = Iterator.continually(window.send(message, now)).takeWhile(_ =>
        window.hasRoom(message, now)
      ).toList
      window.markLimited()
      flights.foreach { flight =>
        now += 4 * Milli
        window.recordArrival(flight, 0, now, 0)
      }
    }
    assert(window.bytes > 2 * ChunkSizes.LeastBytes)
  }

  test("a link is used when its rate changes") {
    val cases = for {
      peers <- Seq(1, 4)
      roundTrip <- Seq(200000L, 20 * Milli)
      rates <- Seq((200, 20), (20, 200), (1000, 50))
    } yield (peers, roundTrip, rates)
    for ((peers, roundTrip, rates) <- Seeds.some(cases, step = 5)) {
      val (before, after) = (rates._1 * 1e6 / 8, rates._2 * 1e6 / 8)
      val star = new Star(math.max(before, after), roundTrip, peers + 1)
      star.uplinks(0).rate = before
      for (to <- 1 to peers) star.sendAlways(0, to, 4 << 20)
      star.received(2)
      star.uplinks(0).rate = after
      withClue(s"$rates Mbit/s, $roundTrip ns, $peers peers: ") {
        assert(star.received(2) > 0.85 * 2 * after)
        assert(star.received(2) > 0.9 * 2 * after)
      }
    }
  }

  test("a path that becomes longer is accepted after a while") {
    val rate = 100 * 1e6 / 8
    val star = new Star(rate, Milli, 2)
    star.sendAlways(0, 1, 16 << 20)
    star.received(1)
    star.uplinks(0).latency = 30 * Milli
    star.received(25)
    assert(star.received(5) > 0.9 * 5 * rate)
  }

  test("a slow receiver does not keep the link from other receivers") {
    val cases = for {
      mbits <- Seq(50, 200, 1000)
      roundTrip <- Seq(200000L, 20 * Milli)
    } yield (mbits, roundTrip)
    for ((mbits, roundTrip) <- Seeds.some(cases, step = 3)) {
      val rate = mbits * 1e6 / 8
      val star = new Star(rate, roundTrip, 5)
      star.downlinks(1).rate = rate / 50
      for (to <- 1 to 4) star.sendAlways(0, to, 4 << 20)
      star.received(3)
      withClue(s"$mbits Mbit/s, $roundTrip ns: ")(assert(star.received(4) > 0.9 * 4 * rate))
    }
  }

  test("many senders to one receiver use its link") {
    for (mbits <- Seq(27, 200); senders <- Seq(3, 8)) {
      val star = new Star(mbits * 1e6 / 8, 200000L, senders + 1)
      for (from <- 1 to senders) star.sendAlways(from, 0, 1 << 20)
      star.received(2)
      withClue(s"$mbits Mbit/s, $senders senders: ")(assert(star.received(4) > 0.9 * 4 * star.rate))
    }
  }

  test("64 MiB to a peer on the same machine arrive nearly at the link's rate") {
    val star = new Star(4e9, 60000, 2)
    var took = 0L
    star.send(0, 1, 64 << 20, Urgency(0, 0)) { took = star.simulation.now }
    star.simulation.run(Long.MaxValue / 2, took > 0)
    assert(took / 1e9 < 1.1 * (64 << 20) / 4e9)
  }

  test("all blocks arrive, for any slow links and times of sending") {
    for (seed <- Seeds.seeds(few = 8, many = 100)) withClue(s"seed $seed: ") {
      val random = new Random(seed)
      val executors = 2 + random.nextInt(6)
      val rate = Seq(10, 100, 1000)(random.nextInt(3)) * 1e6 / 8
      val star = new Star(rate, 100000L + random.nextInt(200) * Milli / 10, executors)
      for (link <- star.uplinks ++ star.downlinks if random.nextInt(4) == 0)
        link.rate = rate / (1 + random.nextInt(50))
      var arrivedCount = 0
      for (_ <- 1 to 40) {
        val Seq(from, to) = random.shuffle((0 until executors).toList).take(2)
        val bytes = 1 + (random.nextDouble() * rate / 20).toInt
        val urgency = Urgency(random.nextInt(2).toLong, random.nextInt(9))
        star.simulation.after((random.nextDouble() * 1e9).toLong)(
          star.send(from, to, bytes, urgency)(arrivedCount += 1)
        )
      }
      star.simulation.run(1000000 * Milli)
      assert(arrivedCount === 40 && star.inFlight === 0)
    }
  }
}

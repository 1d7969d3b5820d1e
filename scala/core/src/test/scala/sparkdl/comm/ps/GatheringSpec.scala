// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import scala.concurrent.{Await, ExecutionContext, Future}
import scala.concurrent.duration._

import com.codahale.metrics.MetricRegistry
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{CommConf, CommException, ManualClock}
import sparkdl.comm.ibatch.Batch
import sparkdl.comm.transport.InMemoryNetwork

/** Tests of ranks in this JVM on an in-memory network. */
class GatheringSpec extends AnyFunSuite {
  private val Job = 7L
  private val TimeoutSeconds = 5L
  private val World = 3
  private val clock = new ManualClock

  private def withRanks(body: IndexedSeq[PsSession] => Unit): Unit = {
    val network = new InMemoryNetwork
    val nodes = (0 until World).map { rank =>
      new PsNode(network.executor(rank), CommConf(0, 1), new MetricRegistry, clock)
    }
    val peers = nodes.map(_.address)
    val sessions = nodes.zipWithIndex.map { case (node, rank) => node.join(Job, rank) }
    try {
      val settings = SessionSettings(Encodings(Fp32), timeoutSeconds = TimeoutSeconds.toDouble)
      sessions.foreach(_.open(peers, IndexedSeq(40000L, 1600L), settings))
      body(sessions)
    } finally {
      sessions.foreach(_.close())
      nodes.foreach(_.close())
    }
  }

  private def part(rank: Int, round: Int): Array[Byte] =
    Array.tabulate(rank + 1)(byte => (10 * round + byte).toByte)

  test("parts are ordered by rank, in each round, for any order of arrival") {
    withRanks { ranks =>
      val first = ranks.map(rank => rank.gathering.begin(part(rank.rank, 0)))
      val second = ranks.reverse.map(rank => rank.gathering.begin(part(rank.rank, 1))).reverse
      Seq(second -> 1, first -> 0).foreach { case (rounds, number) =>
        rounds.foreach(round =>
          assert(round.parts().map(_.toSeq) === ranks.indices.map(part(_, number).toSeq))
        )
      }
    }
  }

  test("the error of a wait that took too long names the missing rank") {
    withRanks { ranks =>
      val round = ranks.take(2).map(_.gathering.begin(Array.emptyByteArray)).head
      val waiting = Future(intercept[CommException](round.parts()))(ExecutionContext.global)
      clock.awaitWaiter()
      clock.advance(TimeoutSeconds)
      val late = Await.result(waiting, 10.seconds)
      assert((late.kind, late.peer) === ((CommException.Deadline, 2)))
    }
  }

  test("a rank that fails ends the waits of all others, now and later") {
    withRanks { ranks =>
      val round = ranks.head.gathering.begin(Array.emptyByteArray)
      val waiting = Future(intercept[CommException](round.parts()))(ExecutionContext.global)
      clock.awaitWaiter()
      ranks(1).abandon("no rows")
      val failed =
        Seq(
          Await.result(waiting, 10.seconds),
          intercept[CommException](ranks(2).gathering.begin(part(2, 0)))
        )
      failed.foreach { failure =>
        assert((failure.kind, failure.peer) === ((CommException.PeerLost, 1)))
        assert(failure.getMessage.contains("no rows"))
      }
    }
  }

  test("a part that does not fit into a message is refused") {
    withRanks { ranks =>
      intercept[IllegalArgumentException](
        ranks.head.gathering.begin(new Array[Byte](Gathering.MostBytes + 1))
      )
    }
  }

  test(
    "gradients of ranks in this JVM are summed in their own memory, and their count never waits"
  ) {
    withRanks { ranks =>
      val layout = new ShardLayout(IndexedSeq(40000L, 1600L), World)
      val batches = IndexedSeq(Batch(1, 2))
      val memories = ranks.map { rank =>
        val map = new SegmentMap(layout, rank.rank, Encodings(Fp32))
        val memory = Segment.allocate(map.bytes)
        memory.putFloats(
          map.gradients,
          Array.fill(layout.total.toInt)(rank.rank + 1f),
          layout.total.toInt
        )
        rank.attach(memory, batches, batches)
        map -> memory
      }
      assert(ranks.map(_.transfers.countSummed(0)) === Seq(0, 0, 0))
      ranks.foreach(_.transfers.push(0, 0))
      ranks.foreach(_.transfers.collect(0, 0))
      assert(ranks.map(_.transfers.countSummed(0)) === Seq(1, 1, 1))
      assert(ranks.map(_.transfers.countSummed(1)) === Seq(0, 0, 0))
      memories.foreach { case (map, memory) =>
        val sums = map.shard.flatMap { range =>
          val values = new Array[Float](range.count.toInt + 1)
          memory.getFloats(map.gradients + range.start * 4, values, 1, range.count.toInt)
          values.tail
        }
        assert(sums.toSet === Set(6f))
      }
    }
  }
}

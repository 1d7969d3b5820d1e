// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import com.codahale.metrics.MetricRegistry
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{CommConf, CommException, ManualClock}
import sparkdl.comm.chunks.{ChunkNode, Tap, TestTransport}
import sparkdl.comm.transport.{
  Blocks,
  ChunkNetwork,
  ChunkPeer,
  InMemoryNetwork,
  PeerMessageReceiver,
  Transport
}

class PsNodeSpec extends AnyFunSuite {
  private val clock = new ManualClock
  private val executor = new InMemoryNetwork().executor(1)
  private val node = new PsNode(executor, CommConf(0, 1), new MetricRegistry, clock)

  test("the port stays open while there is a rank, and for half a minute after the last one left") {
    val first = node.join(7, 0)
    assert(node.address === ChunkPeer("here", 1, "1"))
    first.close()
    clock.advance(29)
    val second = node.join(7, 1)
    clock.advance(3600)
    assert((executor.opened.get, executor.closed.get) === ((1, 0)))
    second.close()
    clock.advance(29)
    assert(executor.closed.get === 0)
    clock.advance(1)
    assert(executor.closed.get === 1)
    node.address
    assert(executor.opened.get === 2)
  }

  test("a taken port fails the rank that needs it, with the key to change") {
    val executor = new InMemoryNetwork().executor(1)
    executor.portsTaken = true
    val node = new PsNode(executor, CommConf(40000, 3), new MetricRegistry, clock)
    val error = intercept[CommException](node.address)
    assert(error.kind === CommException.Conf && error.getMessage.contains(
      "spark.sparkdl.comm.ports=40000-40002"
    ))
    executor.portsTaken = false
    assert(node.address === ChunkPeer("here", 1, "1"))
  }

  /** Executor with a real network on this host. */
  private final class Loopback(number: Int) extends Transport {
    override def host: String = "127.0.0.1"
    override val blocks: Blocks = new InMemoryNetwork().executor(number)
    override def openNetwork(
        firstPort: Int,
        portCount: Int,
        receiver: PeerMessageReceiver
    ): ChunkNetwork =
      ChunkNode.open(new TestTransport, host, number.toString, firstPort, portCount, receiver)
  }

  test("a session does not fail by a connection that died before it was opened") {
    val nodes = IndexedSeq(1, 2).map(number =>
      new PsNode(new Loopback(number), CommConf(0, 1), new MetricRegistry)
    )
    val tap = new Tap(nodes(1).address)
    val settings = SessionSettings(Encodings(Fp32), timeoutSeconds = 20)
    def gather(job: Long): Unit = {
      val sessions = nodes.indices.map(rank => nodes(rank).join(job, rank))
      try {
        sessions(0).open(IndexedSeq(nodes(0).address, tap.address), IndexedSeq(1L, 1L), settings)
        sessions(1).open(nodes.map(_.address), IndexedSeq(1L, 1L), settings)
        val rounds = sessions.map(session => session.gathering.begin(Array(session.rank.toByte)))
        rounds.foreach(round => assert(round.parts().map(_.toSeq) === Seq(Seq(0), Seq(1))))
      } finally sessions.foreach(_.close())
    }
    try {
      gather(job = 1)
      tap.forgetConnections(silently = false)
      gather(job = 2)
      assert(tap.connections === 2)
    } finally {
      tap.close()
      nodes.foreach(_.close())
    }
  }

  test("a rank can join only once") {
    val session = node.join(8, 0)
    assert(intercept[CommException](node.join(8, 0)).getMessage.contains("rank 0 of job 8"))
    session.close()
  }
}

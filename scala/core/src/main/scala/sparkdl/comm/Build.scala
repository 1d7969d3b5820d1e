package sparkdl.comm

import java.net.URL
import java.nio.file.{Files, Path}
import java.security.MessageDigest
import java.util.Properties

/**
 * Which build of the plugin runs here. Executors compare theirs before they talk: the formats of what they say to each other
 * and publish are the jar's own, and versions of it need not understand each other.
 */
private[comm] object Build {

  /** The version, and the beginning of the jar's SHA-256. */
  lazy val id: String = describe(getClass.getProtectionDomain.getCodeSource.getLocation)

  /**
   * @param builds of the executors, by rank
   * @throws CommException if one is not that of this executor, which is rank `rank`'s
   */
  def checkSame(builds: Seq[String], rank: Int): Unit = builds.zipWithIndex.foreach { case (build, other) =>
    if (build != id)
      throw new CommException(
        CommException.Plugin,
        s"the executor of rank $other runs sparkdl-comm $build, and that of rank $rank $id: all need the same jar" +
          " (spark.jars, or what lies on spark.executor.extraClassPath)",
        other
      )
  }

  private[comm] def describe(code: URL): String = {
    val jar = Path.of(code.toURI)
    if (Files.isRegularFile(jar)) s"$version (jar ${digest(Files.readAllBytes(jar))})" else s"$version (classes)"
  }

  private def version: String = {
    val build = new Properties
    val in = getClass.getResourceAsStream("/sparkdl/comm/build.properties")
    try build.load(in)
    finally in.close()
    build.getProperty("version")
  }

  private def digest(bytes: Array[Byte]): String =
    MessageDigest.getInstance("SHA-256").digest(bytes).take(6).map(byte => f"${byte & 0xff}%02x").mkString
}
